"""The strings that tokenizers are compared on: written out where a human chose them, and mixed
by a seeded generator where only the seams between them matter."""

import random

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Voix ambiguë d’un cœur qui, au zéphyr, préfère les jattes de kiwis.",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío.",
    "Luís argüia à Júlia que «brações, fé, chá, óxido, pôr, zângão» eram palavras.",
    "Quel vituperabile xenofobo zelante assaggia il whisky ed esclama: alleluja!",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Árvíztűrő tükörfúrógép.",
    "Flygande bäckasiner söka hwila på mjuka tuvor.",
    "Törkylempijävongahdus.",
    "Kæmi ný öxi hér, ykist þjófum nú bæði víl og ádrepa.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Жебракують філософи при ґанку церкви в Гадячі, ще й шатро їхнє п’яне знаємо.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "נוסח זה הוא ניסיון לבדוק את כל האותיות.",
    "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ إِذ بَزَغَت",
    "بر اثر چنین تلقین و شستشوی مغزی جامعی",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण",
    "আমি বাংলায় গান গাই।",
    "யாமறிந்த மொழிகளிலே தமிழ்மொழி போல்",
    "తెలుగు భాష చాలా అందమైనది.",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "ສະບາຍດີ ທ່ານສະບາຍດີບໍ",
    "ကျွန်တော် မြန်မာစကား ပြောတတ်ပါတယ်။",
    "ខ្ញុំចង់រៀនភាសាខ្មែរ",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "天地玄黃,宇宙洪荒。日月盈昃,辰宿列張。",
    "视野无限广,窗外有蓝天。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "Do bạch kim rất quý nên sẽ dùng để lắp vô xương.",
    "Pijamalı hasta yağız şoföre çabucak güvendi.",
    "Հայերենը հնդեվրոպական լեզու է։",
    "ქართული ენა ძალიან ლამაზია.",
    "ሰማይ አይታረስ ንጉሥ አይከሰስ።",
    "Ɗan Adam yana da ’yancin rayuwa.",
    "ᚠᛇᚻ᛫ᛒᛦᚦ᛫ᚠᚱᚩᚠᚢᚱ᛫ᚠᛁᚱᚪ᛫ᚷᛖᚻᚹᛦᛚᚳᚢᛗ",
    "ᐃᓄᒃᑎᑐᑦ ᑎᑎᕋᐅᓯᖅ",
]

CODE = [
    "def f(x):\n    return x ** 2  # square\n",
    "fn main() {\n    println!(\"{:?}\", vec![1, 2, 3]);\n}\n",
    "for (int i = 0; i < n; ++i) { sum += a[i]; }",
    "SELECT name, COUNT(*) FROM users WHERE age >= 18 GROUP BY name;",
    "<div class=\"x\">Hello &amp; goodbye</div>",
    "{\"key\": [1, 2.5e-3, null, true], \"nested\": {\"a\": \"b\"}}",
    "\tif err != nil {\n\t\treturn nil, err\n\t}\n",
    "$ git commit -m 'fix: off-by-one' && git push --force-with-lease",
    "x = lambda *a, **k: (a, k); y = x(1,2,three=3)",
    "https://example.org/path?q=1&r=%20#frag",
    "C:\\Users\\name\\file.txt",
    "#!/bin/sh\nset -eu\nprintf '%s\\n' \"$@\"\n",
    "template<typename T, std::size_t N> constexpr auto size(const T (&)[N]) noexcept;",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β)",
    "\\frac{\\partial f}{\\partial x} = \\lim_{h\\to 0}",
]

EMOJI = [
    "😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇯🇵", "1️⃣2️⃣", "❤️‍🔥", "🫠", "🧑🏿‍🚀", "♥︎", "☃", "🂡", "🀄", "⌚️",
]

WHITESPACE = [
    " ", "  ", "   ", "    ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r", " \n", "\n ", " \t \n",
    "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\u0085", "\x0b", "\x0c", " " * 17, "\n" * 9,
]

NUMBERS = [
    "0", "7", "42", "123", "1234", "12345", "1234567890", "3.14159", "-273.15", "1,000,000", "1e10", "0x1F",
    "٣٤٥", "१२३", "½", "²³", "Ⅷ", "①②③", "192.168.0.1", "2026-11-21T12:34:56Z", "0000000", "١٢٣٤٥٦",
]

WORDS = [
    "don't", "I'll", "we've", "they're", "it's", "he'd", "I'm", "DON'T", "I'LL", "’twas", "rock'n'roll",
    "naïve", "e\u0301", "é", "ﬁne", "ＦＵＬＬ", "ß", "ẞ", "İ", "ı", "ǅ", "Σς", "co-op", "snake_case", "camelCase",
    "HTTPServer", "a", "I", "...", "…", "--", "—", "!!!", "?!", "«»", "“”", "''", "```", "###", "===", "@user",
    "#tag", "50%", "$9.99", "€5", "£", "¥", "&&", "||", "->", "=>", "::", "//", "/*", "*/", "<>", "[]", "{}",
]

ODD = [
    "", "\x00", "\x01\x02", "\x1b[31mred\x1b[0m", "\x7f", "\ufeff", "\ufffd", "\uffff", "\U0010ffff", "\ue000",
    "\u0301", "a\u0301\u0302\u0303\u0304", "Z̷̢̛a̸l̶g̴o̵", "\u202eabc\u202c", "\u200d", "\ufe0f", "\u00ad", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "𐍈𐌰𐌽", "𒀀𒁀", "𓀀𓁀", "\U000e0001", "🄰", "㍿", "㋿", "ﷺ", "ⅸ", "ꙮ", "𝟘𝟙", "ᴀʙᴄ", "\u1160", "가\u11a8",
]

SPECIALS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|>user\nHi<|im_end|>\n",
    "<|im_start|>system\nYou are.<|im_end|>\n<|im_start|>assistant\n", "<|im_start", "|im_end|>",
    "<|im_start|><|im_start|>", "a<|im_end|>b", " <|im_end|> ", "<repo_name>x<file_sep>y", "<|IM_END|>",
    "<unk>", "<s>", "</s>", "<0x0A>", "<|im_end|>\n\n<|im_start|>", "<issue_start>", "<jupyter_code>",
]


def mixed(count, seed=20261121):
    """Seams: pieces of everything above, cut anywhere, glued with and without space."""
    rng = random.Random(seed)
    pools = [SENTENCES, CODE, EMOJI, WHITESPACE, NUMBERS, WORDS, ODD]
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(2, 6)):
            text = rng.choice(rng.choice(pools))
            if len(text) > 8 and rng.random() < 0.7:
                start = rng.randrange(len(text) - 4)
                text = text[start : start + rng.randint(1, 24)]
            parts.append(text)
        yield rng.choice(["", " ", "", "\n"]).join(parts)


def code_points(count, seed=7):
    """Runs of code points drawn over all planes, surrogates left out."""
    rng = random.Random(seed)
    blocks = [(0x20, 0x7F), (0xA0, 0x24F), (0x370, 0x5FF), (0x600, 0x1FFF), (0x2000, 0x2BFF),
              (0x3000, 0x9FFF), (0xA000, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x1FFFF), (0x20000, 0x2A6DF)]
    for _ in range(count):
        low, high = rng.choice(blocks)
        yield "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 12)))


def plain():
    """Text that holds no control token, whatever the model: parsed with and without specials
    it must give the same ids."""
    fixed = SENTENCES + CODE + EMOJI + WHITESPACE + NUMBERS + WORDS + ODD
    spaced = [" " + text for text in SENTENCES + WORDS + NUMBERS]
    return fixed + spaced + list(mixed(600)) + list(code_points(200))


def with_specials(specials=SPECIALS):
    rng = random.Random(3)
    glued = [
        rng.choice(specials) + rng.choice(SENTENCES + WHITESPACE) + rng.choice(specials) for _ in range(60)
    ]
    return specials + glued
