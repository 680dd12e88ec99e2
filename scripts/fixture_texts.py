"""The 64 texts whose MiniLM vectors are recorded: languages, code, odd characters, and exact token counts."""

# The letters that look like others are meant: the texts are of many scripts.
# ruff: noqa: RUF001

from __future__ import annotations

from collections.abc import Callable

#: Token counts, special tokens included, where a bucket, a tile or the position table ends.
EDGE_LENGTHS = (31, 32, 33, 127, 128, 129, 255, 256, 257, 400, 511, 512)
#: Longer than the position table: cut to 512 tokens.
OVERLONG = 640

_PROSE = (
    "A lighthouse keeper kept a ledger of every ship that passed and the colour of its lamps. "
    "When fog came in from the north she rang the bell once a minute and wrote down who answered. "
    "Most answers were horns, some were voices, and one winter night it was a piano on a drifting barge. "
    "She rowed out with a lantern, tied the barge to the pier and made tea for the tuner who slept on it. "
    "He had been hired by an island whose school owned an instrument nobody could play in tune. "
    "They waited three days for the weather, repaired a cracked soundboard with boat glue, and argued about scales. "
    "On the fourth morning the sea was flat, the gulls were loud, and the ferry took him to his pupils. "
    "In spring a parcel arrived with a recording, and she played it through the fog horn to a fleet of trawlers. "
)

SHORT_TEXTS: tuple[str, ...] = (
    "",
    "a",
    "7",
    "?",
    "中",
    "🦊",
    " ",
    "\t\n  \r\n",
    "ok",
    "The kettle boils.",
    "the kettle boils",
    "Where can I leave my bicycle overnight?",
    "How do I rotate the log files of a daemon that never restarts?",
    "Invoice 2291-B is overdue by 14 days; please pay €1,250.00 by 03/11.",
    "Water freezes at 0 °C and boils at 99.97 °C under one standard atmosphere.",
    "Der Zug nach Görlitz hat wegen einer Stellwerksstörung vierzig Minuten Verspätung.",
    "Les abeilles retrouvent leur ruche en mémorisant la position du soleil.",
    "El panadero abre antes del amanecer y cierra cuando se acaba el pan.",
    "O barco de papel atravessou a poça e encalhou junto ao passeio.",
    "La nonna tagliava la pasta a mano e contava i minuti senza orologio.",
    "De molen draait alleen als de wind uit het westen komt.",
    "Pociąg do Gdyni odjeżdża z peronu trzeciego, nie z czwartego.",
    "Kışın göl donar ve çocuklar üzerinde kayar.",
    "Старый мост скрипит, когда по нему едет повозка с яблоками.",
    "Το καφενείο στην πλατεία ανοίγει μόνο όταν βρέχει.",
    "الميناء هادئ في الصباح قبل أن تصل قوارب الصيد.",
    "החתול ישן על המקלדת ומחק את כל הקובץ.",
    "गाँव के कुएँ का पानी गर्मियों में भी ठंडा रहता है।",
    "雨が止んだら、屋根の上に虹が見えた。",
    "图书馆的二楼有一张靠窗的旧木桌。",
    "기차가 터널을 지나자 바다가 나타났다.",
    "รถเมล์สายสุดท้ายออกตอนเที่ยงคืน",
    "Chiếc thuyền nhỏ neo dưới gốc cây bàng.",
    "Mvua ilinyesha usiku kucha na mto ukafurika.",
    "def area(r: float) -> float:\n    return 3.14159 * r ** 2\n",
    "SELECT city, COUNT(*) FROM trips WHERE km > 42 GROUP BY city ORDER BY 2 DESC;",
    "for (let i = 0; i < rows.length; i++) { total += rows[i].price * rows[i].qty; }",
    'fn main() { println!("{:?}", (1..=5).map(|n| n * n).collect::<Vec<_>>()); }',
    '#include <stdio.h>\nint main(void) { puts("tide"); return 0; }',
    '{"id": 17, "tags": ["red", "wet"], "nested": {"ok": true, "n": null}}',
    '<ul><li class="odd">One</li><li>Two &amp; three</li></ul>',
    "git rebase --onto main feature~3 feature && make -j2 test",
    "https://example.org/a/b?c=d&e=%20f#g",
    "someone@example.org wrote: re: re: fwd: lunch??",
    "C:\\Users\\anna\\Documents\\tax 2019 (final) (2).xlsx",
    "!!! ... --- ((( ))) ??? ;;; ,,, ::: '''",
    "🚲🌧️☂️ then 🍜 and 😴",
    "👩‍👩‍👧‍👦 🇯🇵 👍🏽 ✈️",
    "ÀÉÎÕÜ àéîõü ñ ç ß æ ø å",
    "ﬁne ﬂoor ½ ² ™ … “quoted” ‘single’ — dash",
    "x\u0000y\u200bz\ufeffw",
)


def fixture_texts(count_tokens: Callable[[str], int]) -> list[str]:
    """The short texts, then one of each edge length and the overlong one; ``count_tokens`` counts special tokens."""
    return [*SHORT_TEXTS, *(_of_length(n, i, count_tokens) for i, n in enumerate((*EDGE_LENGTHS, OVERLONG)))]


def _of_length(tokens: int, turn: int, count_tokens: Callable[[str], int]) -> str:
    """Prose begun at another word each time, cut word by word and filled with single-token words to ``tokens``."""
    words = (_PROSE * 8).split()[turn * 5 :]
    taken: list[str] = []
    for word in words:
        if count_tokens(" ".join([*taken, word])) > tokens:
            break
        taken.append(word)
    while count_tokens(" ".join(taken)) < tokens:
        taken.append("so")
    return " ".join(taken)
