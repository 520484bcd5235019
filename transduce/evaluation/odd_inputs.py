"""Two hundred inputs that people type and corpora hardly hold, written here by hand, to see what a model makes of them.

Words, capitals, greetings in other languages ought to be translated; numbers, names, signs and addresses mostly stay.
"""

from __future__ import annotations

WORDS = (
    "cat|house|water|why|tomorrow|blue|seventeen|run|beautiful|nothing|window|maybe|sorry|help|Wednesday"
    "|Katze|Haus|Wasser|warum|morgen|schön|Danke|maison|eau|pourquoi|demain|merci|gato|casa|agua|mañana"
    "|gracias|água|amanhã|obrigado|猫|房子|水|为什么|明天"
)
NUMBERS = (
    "7|42|1984|3.14159|1,000,000|-273.15|50%|100 km/h|12:45|2026-11-15|15.11.2026|$19.99|€5|£3.50|¥800|+49 30 1234567"
    "|1/2|2 + 2 = 4|10^6|0|IV|1st|3rd|20°C|A4|H2O"
)
NAMES = (
    "Maria|Tom|Anna-Lena Müller|José García|João da Silva|François Dupont|王小明|Dr. Smith|Mr. and Mrs. Brown|O'Neill"
    "|New York|Zürich|São Paulo|Beijing|Gdańsk|IBM|UNESCO|iPhone|Müller & Söhne GmbH|Hyperion Quill|Zorblax|McAllister"
)
CAPITALS = (
    "STOP|HELP ME|DO NOT ENTER|I LOVE YOU|WHERE ARE YOU|NO SMOKING|PLEASE READ THIS|THE CAT IS ON THE TABLE|SALE"
    "|WARNING: HOT SURFACE|EXIT ONLY|HAPPY BIRTHDAY|BITTE NICHT STÖREN|DÉFENSE DE FUMER|PROHIBIDO EL PASO"
    "|NÃO PERTURBE|thank you very much|how are you|i dont know|whats your name|WhErE iS iT|nO wAy|okay...|???|!!!"
)
SIGNS = (
    "😀|❤️|👍👍👍|I ❤️ you|Good morning ☀️|🎉 Happy birthday! 🎉|:-)|;-)|¯\\_(ツ)_/¯|😂😂😂 so funny|🐱 + 🥛 = ❤️"
    '|→|★★★★☆|© 2026|™|…|—|""|()|*'
)
ADDRESSES = (
    "https://example.org|www.example.com/path?query=1&page=2|ftp://files.example.net/a.zip|someone@example.com"
    "|See https://example.org for more.|Write to info@example.org.|C:\\Users\\me\\file.txt|/usr/local/bin|~/notes.md"
    "|print('hello')|if (x == 1) { return; }|<b>bold</b>|SELECT * FROM users;|@someone|#hashtag|v1.2.3|192.168.0.1"
    "|file_name_with_underscores.tar.gz|key=value|a@b@c"
)
OTHER_LANGUAGES = (
    "Доброе утро!|Где вокзал?|おはようございます。|猫が好きです。|안녕하세요?|صباح الخير|שלום|Καλημέρα|Buongiorno!"
    "|Dov'è la stazione?|Goedemorgen!"
    "|God morgon!|Dzień dobry!|Dobré ráno!|Jó reggelt!|Günaydın!|Chào buổi sáng!|नमस्ते"
    "|สวัสดี|Selamat pagi!|Habari za asubuhi?"
    "|Bună dimineața!|Huomenta!|Góðan daginn!|Maidin mhaith!|Salve, amice!|Saluton, mondo!"
    "|早晨，你好嗎？|貓喜歡睡覺。|Guete Morge mitenand!"
)
MIXED = (
    "asdfghjkl|aaaaaaaaaa|ha ha ha|x|ß|the the the|I I want want this this"
    "|Ich bin very happy today.|C'est la vie, my friend.|No problem, amigo!|我要一杯 coffee。"
    '|Lorem ipsum dolor sit amet|NULL|Yes No Yes No|12 cats, 3 dogs & 1 bird|( see page 4 )|"Hi," he said.'
)

KINDS: dict[str, tuple[str, ...]] = {
    "word": tuple(WORDS.split("|")),
    "number": tuple(NUMBERS.split("|")),
    "name": tuple(NAMES.split("|")),
    "capitals": tuple(CAPITALS.split("|")),
    "signs": tuple(SIGNS.split("|")),
    "address": tuple(ADDRESSES.split("|")),
    "other language": tuple(OTHER_LANGUAGES.split("|")),
    "mixed": tuple(MIXED.split("|")),
}
STAY = ("number", "name", "signs", "address", "mixed")  # a copy of these is no fault
