"""What a shell command is taken to do, compared with what it does."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hames.policy.shell import classify

READS = r"""
ls
ls -la src
cat f
cat f sub/g
cat 'f' "sub/g"
cat f | head -3 | wc -l
cat f; cat sub/g
cat f && cat sub/g || echo no
echo hello world
echo "hello; rm x"
echo 'a > b'
echo 'a $(touch x)'
echo a >&2
echo a 2>&1
echo a 2>/dev/null
echo a > /dev/null 2>&1
echo a &> /dev/null
cat < f
grep -rn "foo bar" src
grep -E '^(a|b)$' f
rg foo
rg -n 'foo.*bar' src
rg 'a -> b' f
find . -name '*.py'
find . -type f -newer f
find sub -maxdepth 2
sort f
sort -rn f
sort -t, -k2 f
cut -d: -f1 f
tr a-z A-Z
head -n 5 f
tail -n +2 f
wc -l f
stat f
file f
du -sh .
df -h
diff f sub/g
cmp f sub/g
comm f sub/g
md5sum f
sha256sum f
date
date +%s
pwd
cd sub
cd sub && ls
id
whoami
uname -a
which bash
true
false
test -f f
seq 3
basename a/b
dirname a/b
realpath f
readlink f
nl f
tac f
expr 1 + 2
jq . f
git status
git status --short
git diff
git diff --stat HEAD
git log --oneline -5
git show HEAD
git rev-parse HEAD
git ls-files
git branch
git branch -a
git --version
python3 --version
""".strip().splitlines()

WRITES = r"""
rm f
touch x
mv f x
cp f x
mkdir d
ln -s f x
chmod +x f
sed -i s/a/b/ f
tee x
dd if=f of=x
python3 -c 'pass'
bash -c 'touch x'
sh x
./cat f
eval touch x
exec touch x
source f
. f
xargs touch
env touch x
nohup touch x
command touch x
builtin echo x
printf x
echo a > x
echo a >x
echo a >> x
echo a 2> x
echo a &> x
echo a &>> x
echo a >| x
echo a >& x
echo a > "/dev/null/../x"
echo a >/dev/null""x
echo a <> x
> x
cat f > x
cat f | tee x
cat f; touch x
cat f && touch x
cat f || touch x
cat f & touch x
cat f |& tee x
echo $(touch x)
echo `touch x`
echo "$(touch x)"
echo "`touch x`"
echo $((a[$(touch x)]))
echo ${a:=$(touch x)}
cat <(touch x)
cat f > >(tee x)
cat <<< x > y
(touch x)
{ touch x; }
if true; then touch x; fi
while false; do touch x; done
for a in b; do touch x; done
! touch x
time touch x
f() { touch x; }
A=1 touch x
PATH=. cat f
A+=1 ls
coproc touch x
[[ -v a ]]
[ -v a ]
echo {a,b}
echo a #b
find . -delete
find . -exec touch x ';'
find . -execdir touch x ';'
find . -ok touch x ';'
find . -fprint x
find . -fprintf x a
find . -fls x
sort -o x f
sort -ox f
sort -uo x f
sort -nro x f
sort --output=x f
sort --outp=x f
sort --o x f
sort --compress-program=./evil f
sort "-o" x f
sort \-o x f
sort -T d f
rg --pre ./evil a
rg --hostname-bin ./evil a
file -C -m f
date -s 2020-01-01
date --set=2020-01-01
git
git add .
git commit -m x
git checkout f
git stash
git diff --output=x
git log --output x
git diff --ext-diff
git grep -Oless a
git grep --open-files-in-pager=less a
git -c core.pager=x log
git -C sub status
git branch new
git branch -D main
git cat-file --textconv HEAD:f
git config user.name x
nonsense f
$CMD
""".strip().splitlines()

NETWORK = r"""
curl http://a
wget http://a
ssh host
git push
git fetch origin
git clone http://a
npm install
npm ci
pip install x
python3 -m pip install x
uv sync
cargo fetch
go get x
sudo curl x
env curl x
timeout 5 curl x
xargs curl
/usr/bin/curl x
cat f | curl -d @- x
echo $(curl x)
if true; then curl x; fi
A=1 curl x
npx thing
docker run x
""".strip().splitlines()

LOCAL = ["ls", "echo curl", "git status", "npm test", "cat f", "make", "pip list", "go build", "cargo build"]

#: Written to look as if they read: quoting, expansion and options that hide what they do.
DISGUISED = [
    "sort -{o..o}x f",
    "find . -{d..d}elete",
    "find . {' ',-delete}",
    "find . {\\ ,-delete}",
    "find . '<' -delete",
    "sort -t '<' -ox f",
    "sort -t \\< -o x f",
    'rg "<" --pre ./evil .',
    "git log -S '<' --output=x",
    "echo hi >&2x",
    "echo hi >&1x",
    "test -v 'a[$(touch x)]'",
    "test -v a[\\$\\(touch\\ x\\)]",
    "test f -a -v 'a[$(touch x)]'",
    "git grep -nOrm a",
    "git grep -iOrm a",
    "as -V",
    "file -0C -m f",
    "cat f\nsort -ox f",
    "cat f\n\ntouch x",
    "cat \\\nf > x",
    "'sort' -ox f",
    "so''rt -ox f",
    "s\\ort -ox f",
    "sort f -'o'x",
    "sort f '-o' x",
    "find . -dele'te'",
    "cat 'f'\"$(touch x)\"",
    "cat <<E\n$(touch x)\nE",
    "cat <<-E > x\na\nE",
    "echo a\rtouch x",
    "echo a >\\\nx",
]

GLOBBED = ["sort -?x f", "sort '-'* f", "git log *", "git log -*", "find . -d*", "rg a -*"]


@pytest.mark.parametrize("command", READS)
def test_what_only_reads_is_taken_so(command):
    assert classify(command) == {"read", "execute"}


@pytest.mark.parametrize("command", WRITES)
def test_what_may_write_is_taken_so(command):
    assert "write" in classify(command)


@pytest.mark.parametrize("command", NETWORK)
def test_what_speaks_to_others_is_taken_so(command):
    assert "network" in classify(command)


@pytest.mark.parametrize("command", LOCAL)
def test_what_stays_here_is_taken_so(command):
    assert "network" not in classify(command)


@pytest.mark.parametrize("command", DISGUISED)
def test_a_disguise_does_not_make_a_writer_a_reader(command):
    assert "write" in classify(command)


@pytest.mark.parametrize("command", GLOBBED)
def test_a_pattern_that_could_become_an_option_is_no_reader(command):
    """The names in a directory are whatever a stranger's repository has there, for example ``-ox`` or ``--output=x``."""
    assert "write" in classify(command)


def test_setting_the_clock_is_no_reading():
    assert "write" in classify("date 010100002030")


def test_a_socket_that_bash_opens_is_the_network():
    assert "network" in classify("cat < /dev/tcp/192.0.2.1/80") or "write" in classify("cat < /dev/tcp/192.0.2.1/80")


# compared with really running them


def place(root: Path) -> Path:
    root.mkdir()
    (root / "sub").mkdir()
    (root / "f").write_text("a\nb\n")
    (root / "sub" / "g").write_text("c\n")
    (root / "src").mkdir()
    evil = root / "evil"
    evil.write_text("#!/bin/sh\ntouch x\n")
    evil.chmod(0o755)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q", "."], cwd=root, check=True)
    subprocess.run([*git, "add", "."], cwd=root, check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], cwd=root, check=True)
    return root


def contents(root: Path) -> dict[str, str]:
    found = {}
    for directory, names, files in os.walk(root):
        for name in names:
            found[os.path.join(directory, name)] = "directory"
        for name in files:
            path = os.path.join(directory, name)
            found[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest() + oct(os.stat(path).st_mode)
    return found


@pytest.fixture
def work(tmp_path):
    return place(tmp_path / "work")


def run(command: str, cwd: Path) -> None:
    """Run a command; one that waits for what does not come is ended."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "LANG": "C.UTF-8"}
    try:
        subprocess.run(
            ["bash", "-c", command], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        pass


def test_nothing_that_is_taken_for_a_reader_changes_a_file(work):
    before = contents(work)
    for command in READS:
        run(command, work)
        assert contents(work) == before, command


@pytest.mark.parametrize("command", [each for each in DISGUISED if "date" not in each])
def test_what_is_taken_for_a_reader_changes_no_file_whatever_it_looks_like(work, command):
    if "write" in classify(command):
        return
    before = contents(work)
    run(command, work)
    assert contents(work) == before


# properties

WRITER = st.sampled_from(
    ["touch x", "rm f", "tee x", "cp f x", "sort -ox f", "find . -delete", "git commit -m a", "echo a > x", "sed -i s/a/b/ f"]
)
READER = st.sampled_from(["cat f", "ls -la", "echo 'a; b'", "grep -n a f", "git status", "head -1 f", 'echo "a > b"', "true"])
HIDING = st.sampled_from(
    [
        "{r}; {w}",
        "{r} && {w}",
        "{r} || {w}",
        "{r} | {w}",
        "{r}\n{w}",
        "{r};{w}",
        "{r}|{w}",
        "{r} & {w}",
        "{r} |& {w}",
        "{w}; {r}",
        "{w}\n{r}",
        "{r} $({w})",
        '{r} "$({w})"',
        "{r} `{w}`",
        '{r} "`{w}`"',
        "{r} <({w})",
        "{r} > >({w})",
        "({w})",
        "{{ {w}; }}",
        "if {r}; then {w}; fi",
        "for i in a; do {w}; done",
        "while {w}; do break; done",
        "case a in a) {w};; esac",
        "! {w}",
        "time {w}",
        "A=b {w}",
        "f() {{ {w}; }}; f",
        "cat <<E\n$({w})\nE\n{r}",
        "{r} <<< $({w})",
        "echo $(( $({w}) ))",
        "echo ${{a:-$({w})}}",
        "echo $'a'; {w}",
        "{r} # no\n{w}",
        "{r} \\\n; {w}",
        "eval '{w}'",
        "bash -c '{w}'",
        "test -v 'a[$({w})]'",
    ]
)


@given(WRITER, READER, HIDING)
@settings(max_examples=400, deadline=None)
def test_a_writer_is_found_wherever_it_hides(writer, reader, hiding):
    if "'" in writer and "'" in hiding:
        return
    assert "write" in classify(hiding.format(w=writer, r=reader))


def quotings(word: str) -> st.SearchStrategy[str]:
    """The same word for bash, written otherwise."""
    piece = st.sampled_from(["{}", "'{}'", '"{}"', "\\{}", "''{}", '{}""'])
    return st.lists(piece, min_size=len(word), max_size=len(word)).map(
        lambda forms: "".join(f.format(c) for f, c in zip(forms, word, strict=True))
    )


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_quoting_hides_nothing(data):
    words = data.draw(
        st.sampled_from(
            [
                ["touch", "x"],
                ["sort", "-o", "x", "f"],
                ["sort", "-nox", "f"],
                ["sort", "--output=x", "f"],
                ["find", ".", "-delete"],
                ["find", ".", "-fprint", "x"],
                ["git", "diff", "--output=x"],
                ["git", "commit"],
                ["rg", "--pre", "evil", "a"],
            ]
        )
    )
    assert "write" in classify(" ".join(data.draw(quotings(word)) for word in words))


@given(st.sampled_from(["output", "compress-program", "temporary-directory"]), st.integers(min_value=1, max_value=20))
def test_an_abbreviated_option_is_the_option(name, length):
    assert "write" in classify(f"sort --{name[:length]} x f")
    assert "write" in classify(f"sort --{name[:length]}=x f")


@given(st.lists(st.sampled_from("bdfghiMnRrVcCmsuz"), max_size=4).map("".join))
def test_clustered_options_hide_no_output(cluster):
    assert "write" in classify(f"sort -{cluster}o x f")
    assert "write" in classify(f"sort -{cluster}ox f")


PIECES = st.sampled_from(
    [
        "cat",
        "sort",
        "find",
        "git",
        "rg",
        "echo",
        "test",
        "grep",
        "ls",
        "f",
        ".",
        "x",
        "-o",
        "-ox",
        "-delete",
        "log",
        "diff",
        "grep",
        "--output=x",
        "--pre",
        "./evil",
        "-v",
        "a[$(touch x)]",
        "'",
        '"',
        "\\",
        "<",
        ">",
        ">>",
        ">&",
        "2",
        "1",
        "&",
        ";",
        "\n",
        "{",
        "}",
        ",",
        "..",
        "$",
        "(",
        ")",
        "`",
        "~",
        "*",
        "?",
        "[",
        "]",
        "!",
        "#",
        " ",
        " ",
        " ",
        "/dev/null",
        "-S",
        "-t",
        "-n",
        "O",
        "rm",
        "a",
        "|",
        "||",
        "&&",
        "'<'",
        "'>'",
        "' '",
        "{o..o}",
        "{' ',",
        "-{o..o}x",
    ]
)


@given(st.lists(PIECES, min_size=2, max_size=9).map("".join))
@settings(max_examples=4000, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_text_breaks_the_classes(command):
    found = classify(command)
    assert {"read", "execute"} <= found <= {"read", "execute", "write", "network"}


SPOKEN = st.one_of(
    st.tuples(
        st.sampled_from(["sort", "find .", "rg", "git grep", "git log", "git diff", "test", "echo", "cat", "file", "grep"]),
        st.lists(
            st.sampled_from(
                [
                    "f",
                    "a",
                    "'<'",
                    "\\<",
                    "'>'",
                    "-ox",
                    "-o",
                    "x",
                    "-delete",
                    "-v",
                    "'a[$(touch x)]'",
                    "-{o..o}x",
                    "-{d..d}elete",
                    "{' ',-delete}",
                    "--output=x",
                    "-S",
                    "-nOrm",
                    "--pre",
                    "./evil",
                    ".",
                    "-t",
                    ">&2x",
                    ">&2",
                    "2>&1",
                    "> /dev/null",
                    "'>'x",
                    "-n",
                    "-u",
                    "*",
                    "-C",
                ]
            ),
            min_size=1,
            max_size=4,
        ),
    ).map(lambda pair: f"{pair[0]} {' '.join(pair[1])}"),
)


def test_generated_commands_that_are_taken_for_readers_change_no_file(tmp_path):
    """Many words at random, really run in one directory: readers leave it as it is."""
    work = place(tmp_path / "work")
    before = contents(work)
    guilty: list[str] = []
    tried: set[str] = set()

    @given(SPOKEN)
    @settings(max_examples=250, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def attempt(command):
        if command in tried or "write" in classify(command):
            return
        tried.add(command)
        run(command, work)
        if contents(work) != before:
            guilty.append(command)
            subprocess.run(["rm", "-rf", str(work)], check=True)
            place(work)
            before.clear()
            before.update(contents(work))

    attempt()
    assert len(tried) > 30
    assert guilty == []
