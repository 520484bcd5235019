// Making elements, and the languages of the interface.

/** An element: properties by name, `class`, `text`, `on` (listeners), `aria` and any attribute besides. */
export function make(tag, options = {}, ...children) {
  const svg = ["svg", "g", "path", "rect", "text", "tspan", "circle", "line", "title"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") element.setAttribute("class", value);
    else if (key === "text") element.textContent = value;
    else if (key === "on") for (const [name, work] of Object.entries(value)) element.addEventListener(name, work);
    else if (key === "style") Object.assign(element.style, value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A row of buttons of which one is chosen: [[value, label], ...]. */
export function chooser(label, entries, chosen, choose) {
  const buttons = entries.map(([value, text]) =>
    make("button", {
      type: "button", text, "aria-pressed": String(value === chosen), "data-value": String(value),
      on: { click: () => choose(value) },
    }));
  return make("div", { class: "choice", role: "group", "aria-label": label }, ...buttons);
}

/** A subword piece as one reads it: the marker of a word's beginning is a raised space. */
export const shown = (piece) => (piece === "▁" ? "␣" : piece.replace(/^▁/, "·").replaceAll("▁", "␣"));
export const percent = (value) => (value >= 0.0995 ? `${Math.round(value * 100)} %` : value < 0.0005 ? "<0.1 %" : `${(value * 100).toFixed(1)} %`);
export const fixed = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));

const WORDS = {
  en: {
    attention: "Attention", words: "Words", beam: "Beam", steps: "Steps", lens: "Logit lens", heads: "Heads",
    encoder: "Encoder", decoder: "Decoder", cross: "Cross", lines: "Lines", matrix: "Matrix", sight: "Overlay", view: "View",
    mean: "mean of heads", layer: "Layer", head: "Head", all: "All heads", overview: "Overview of all heads",
    "part.encoder": "Source tokens look at source tokens.",
    "part.decoder": "What is written so far looks at itself; nobody looks ahead.",
    "part.cross": "Each word that is written looks at the source.",
    "part.sight": "Each word that is written looks at the recording or picture.",
    none: "This model traces none.", looks: "looks at", looked: "is looked at by", pin: "Hover or focus a token; click to pin it.",
    zoom: "Size", strongest: "strongest", source: "Source", translation: "Translation", score: "score", logprob: "log-probability",
    showPruned: "Show what was pruned", kept: "kept", finished: "finished", pruned: "pruned", open: "open at the end", best: "chosen",
    beamHelp: "Each column is a step, the likeliest continuations on top. Hover for scores; click a token to go on from there.",
    beamHelpFile: "Each column is a step, the likeliest continuations on top. Hover for scores.",
    step: "Step", read: "It read", wrote: "It wrote", probability: "Probability", entropy: "Entropy", saw: "Looked at", candidates: "It could have said",
    whatIf: "What if it had said", stepsHelp: "Click another candidate to see what would have followed.", nothingElse: "Not worked out in this file; open /explore on a server to ask.",
    lensHelp: "What each layer would say if it were the last. Bold: what was written.", rank: "rank",
    headsHelp: "Click a column to sort, a row to look at the head.", confidence: "Confidence", distance: "Distance", diagonal: "Diagonal",
    previous: "Before", following: "After", ends: "Start/end", role: "Looks at", part: "Part",
    compare: "Side by side", one: "One", which: "Shown", left: "Left", right: "Right", forced: "forced beginning", back: "Back to what it said",
    wordsHelp: "Which source words each word came from: the mean of all cross-attention.", noTree: "No tree: this translation was given, or written all at once.",
    unfinished: "cut off by the length limit", theme: "Light or dark", search: "search", total: "path", noSteps: "Not seen of this model: see the note above.", text: "text",
  },
  zh: {
    attention: "注意力", words: "词对齐", beam: "束搜索", steps: "逐步", lens: "逐层预测", heads: "注意力头",
    encoder: "编码器", decoder: "解码器", cross: "交叉", lines: "连线", matrix: "矩阵", sight: "叠加图", view: "视图",
    mean: "各头平均", layer: "层", head: "头", all: "所有头", overview: "所有注意力头总览",
    "part.encoder": "源端词元之间的注意力。", "part.decoder": "已写出的部分看自身；看不到后面。", "part.cross": "写出的每个词元看源句。", "part.sight": "写出的每个词元看录音或图像。",
    none: "该模型没有这种注意力。", looks: "关注", looked: "被关注于", pin: "悬停或聚焦词元；点击固定。",
    zoom: "大小", strongest: "最强", source: "源文", translation: "译文", score: "得分", logprob: "对数概率",
    showPruned: "显示被剪掉的", kept: "保留", finished: "完成", pruned: "剪掉", open: "结束时未完成", best: "选中",
    beamHelp: "每列是一步，最可能的在上面。悬停看分数；点击词元从那里继续。", beamHelpFile: "每列是一步，最可能的在上面。悬停看分数。",
    step: "步", read: "读入", wrote: "写出", probability: "概率", entropy: "熵", saw: "关注", candidates: "本可写出",
    whatIf: "如果当时写", stepsHelp: "点击其他候选，看后面会怎样。", nothingElse: "此文件中没有算出；请在服务器的 /explore 中查看。",
    lensHelp: "如果每一层是最后一层，它会说什么。粗体：实际写出的。", rank: "名次",
    headsHelp: "点击列排序，点击行查看该头。", confidence: "集中度", distance: "距离", diagonal: "对角", previous: "前一个", following: "后一个",
    ends: "首尾", role: "关注", part: "部分", compare: "并排", one: "单个", which: "显示", left: "左", right: "右", forced: "强制开头", back: "回到原译文",
    wordsHelp: "每个译词来自哪些源词：所有交叉注意力的平均。", noTree: "没有搜索树：译文是给定的，或一次写出的。",
    itself: "自身", "the place opposite": "对应位置", "the token before": "前一个词元", "the place before": "前一个位置", "the token after": "后一个词元",
    "the place after": "后一个位置", "start or end": "开头或结尾", "everything alike": "平均看一切", "one place, which varies": "一个变化的位置", "several places": "几个位置",
    unfinished: "因长度限制截断", theme: "明暗", search: "搜索", total: "路径", noSteps: "此模型看不到：见上面的说明。", text: "文本",
  },
};

let spoken = "en";
export function setLanguage(language) { spoken = String(language).toLowerCase().startsWith("zh") ? "zh" : "en"; }
export const say = (key) => WORDS[spoken][key] ?? WORDS.en[key] ?? key;

/** In words what a marked token, ["row", place] or ["column", place], looks at or is looked at by. */
export function lookText(grid, marked, rowLabels, columnLabels) {
  if (!marked) return say("pin");
  const [side, place] = marked, row = side === "row";
  const [own, other] = row ? [rowLabels, columnLabels] : [columnLabels, rowLabels];
  const found = row ? grid.best(place, 5) : grid.bestRows(place, 5);
  const list = found.map(([there, weight]) => `${shown(other[there])} ${percent(weight)}`).join(", ");
  return `${shown(own[place])} ${say(row ? "looks" : "looked")}: ${list || "–"}`;
}
