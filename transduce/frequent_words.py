"""Frequent words and greetings that tell languages apart: none of the other languages here has them often.

Taken from word counts of Tatoeba (CC BY 2.0 FR): each is sixty times as frequent in its own language as in any other
here, or is a greeting or a household word that was put in by hand and is twenty times as frequent.
"""

from __future__ import annotations

FREQUENT = {
    "en": "the and is are you of to my it this that what with have i we they she your can like for be who were please"
    " him know want not here go there did how his at everyone love up got everything need good looks get just let"
    " one think never about out look help us likes take everybody very nothing something why seems had should"
    " nobody where now looked going back went home would more if loves hate from work speak when down right happy"
    " must by said again well keep felt tell eat feel people them could hello hi yes thanks morning evening night"
    " welcome sorry goodbye bye cat cats dog dogs house water book books friend friends today tomorrow yesterday"
    " school world",
    "de": "der und nicht ich ist ein eine mit auf für wir sie den dem wie zu haben er sind ihr bin mich mir habe sich"
    " dich bist dass bitte wurde wird mag kann hast ihn einen nichts etwas alle gehen dir wer noch von warum sein"
    " aus nach als gut werde niemand werden seid meine im euch weiß wo hatte sehr alles muss möchte kommt ihm"
    " gerne mein kommen gerade liebe komm können viel wenn diese keine weiter mehr geld schon waren nie deine lass"
    " macht geht vor tun nur machen morgen ging immer jetzt heute liebt zeit müssen kannst hallo guten danke"
    " tschüss nein abend nacht haus wasser buch katze katzen hund freund frau stadt straße schule welt"
    " gestern",
    "fr": "est je une vous pas dans avec nous elle qui ce sur il et suis êtes ne ça ils moi était sont elles sommes"
    " tout qu ici veux étais faire toi au votre cela quelle mon cette pourquoi ton avez fait quel aime être où"
    " soyez peux ceci ont tous sais lui là beaucoup regarde temps très personne avons fais bon laisse dit quelque"
    " été tes voici maintenant trop laissez allez semble vraiment demain toutes reste parler porte quand juste"
    " parle regardez rien allons prends veuillez restez faites peut aimerais maison étaient encore peu bonjour"
    " bonsoir salut merci oui plaît chien chiens eau livres ami amis femme homme enfant enfants jour nuit matin"
    " ville rue école monde",
    "es": "el los las una muy pero con del yo qué ella hay tengo mi su fue él estoy eso quiero esto aquí más soy estaba"
    " puedo eres tienes ellos tiene están dónde quién ya necesito ahora mañana cómo gusta mucho nadie puedes puede"
    " sé quieres tú tiempo quiere hacer usted dinero tenemos verdad hoy cuándo quería siempre todavía trabajo ayer"
    " alguien libro ese sus mejor voy hablar ahí cuando allí ayuda conmigo hace hacerlo esa deberías otra creo"
    " habla dijo cuánto nosotros debería podría hizo tres había nuevo años odio tus poco mí día perro tenía hasta"
    " hola adiós buenos buenas gracias perros agua libros mujer hombre niño niños ciudad calle escuela",
    "pt": "não uma você os ele ela muito em eu isso são é meu estou nós eles sou vocês estava foi tem aqui quero tenho"
    " quem vai já estão bem elas tudo fazer vou quer ninguém seu onde agora quando isto posso sua há minha ao"
    " ainda pode tempo disse gosto comigo preciso hoje temos lá alguém queria fala acho só obrigado bom demais"
    " quanto disso falar estavam amanhã ficar sempre mim tão melhor ter ficou seja odeio sem anos dinheiro fez"
    " também qual ontem pessoas livro ajudar lhe mesmo precisamos dele essa novo coisa gostaria três trabalho seus"
    " sim olá obrigada tchau boa cachorro cão água livros mulher homem criança crianças cidade rua escola",
    "zh": "",  # told by its script
}
