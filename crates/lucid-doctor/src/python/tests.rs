use serde_json::json;

use super::*;

fn cases(list: Json) -> Vec<Case> {
    let Json::Array(list) = list else { panic!() };
    list.into_iter()
        .map(|pair| Case { arguments: pair[0].as_array().unwrap().clone(), expected: pair[1].clone() })
        .collect()
}

/// The value of an expression, as Python's `repr`.
fn value(expression: &str) -> String {
    let source = format!("def f():\n    return {expression}\n");
    match judge_function(&source, "f", &[Case { arguments: vec![], expected: json!("\u{1}never") }]) {
        Judgement::Wrong(text) => {
            text.trim_start_matches("() gave ").trim_end_matches(", not '\u{1}never'").to_owned()
        }
        other => format!("{other:?}"),
    }
}

/// The expected values are what CPython 3.11 prints.
#[test]
fn expressions_as_cpython_prints_them() {
    for (expression, expected) in [
        ("7 // -2, -7 // 2, -7 // -2, 7 // 2", "(-4, -4, 3, 3)"),
        ("7 % -2, -7 % 2, -7 % -2, -1 % 3", "(-1, 1, -1, 2)"),
        ("2 ** 10, 2 ** -1, 10 ** 20", "(1024, 0.5, 100000000000000000000)"),
        ("1 / 2, 4 / 2, 1e16, 1e22, 0.0001, 0.00001", "(0.5, 2.0, 1e+16, 1e+22, 0.0001, 1e-05)"),
        ("True + True, 1 == 1.0, True == 1, None is None", "(2, True, True, True)"),
        (
            "'abc'[::-1], 'abcdef'[1:4], 'abcdef'[-2:], 'abc'[5:], [1, 2, 3][::-2]",
            "('cba', 'bcd', 'ef', '', [3, 1])",
        ),
        (
            "[x * x for x in range(5) if x % 2], {k: v for k, v in zip('ab', [1, 2])}",
            "([1, 9], {'a': 1, 'b': 2})",
        ),
        (
            "sum(range(11)), max([3, 1, 2]), min(4, 2), sorted('hello', reverse=True)",
            "(55, 3, 2, ['o', 'l', 'l', 'h', 'e'])",
        ),
        ("sorted(['bb', 'a', 'cc'], key=len, reverse=True)", "['bb', 'cc', 'a']"),
        (
            "all(x > 0 for x in [1, 2]), any([]), 3 in range(0, 10, 3), 4 in range(0, 10, 3)",
            "(True, False, True, False)",
        ),
        ("1 < 2 < 3, 1 < 3 < 2, not 0, [] or 'x', 0 and 1", "(True, False, True, 'x', 0)"),
        (
            "'a,b'.split(','), ' x '.strip(), '-'.join(['a', 'b']), 'Ab'.lower()",
            "(['a', 'b'], 'x', 'a-b', 'ab')",
        ),
        ("f'{1 + 1}:{3.14159:.2f}:{7:03d}:{\"x\"!r}'", "\"2:3.14:007:'x'\""),
        ("int('12'), int(-3.7), round(2.5), round(3.5), round(2.675, 1), abs(-3)", "(12, -3, 2, 4, 2.7, 3)"),
        ("(lambda a, b=2, *c: (a, b, c))(1, 5, 6)", "(1, 5, (6,))"),
        ("divmod(17, 5), 17 >> 2, 1 << 10, 6 & 3, 6 | 3, 6 ^ 3", "((3, 2), 4, 1024, 2, 7, 5)"),
    ] {
        assert_eq!(value(expression), expected, "{expression}");
    }
}

#[test]
fn right_and_wrong_functions() {
    let primes = cases(json!([
        [[0], false],
        [[1], false],
        [[2], true],
        [[4], false],
        [[17], true],
        [[25], false],
        [[29], true]
    ]));
    let right = "import math\n\ndef is_prime(n: int) -> bool:\n    \"\"\"Primes.\"\"\"\n    if n < 2:\n        return False\n    for i in range(2, math.isqrt(n) + 1):\n        if n % i == 0:\n            return False\n    return True\n\nif __name__ == '__main__':\n    print(is_prime(7))\n";
    assert_eq!(judge_function(right, "is_prime", &primes), Judgement::Right);
    let Judgement::Wrong(why) = judge_function(&right.replace("+ 1", "- 1"), "is_prime", &primes) else {
        panic!()
    };
    assert_eq!(why, "(4) gave True, not False");
    assert!(
        matches!(judge_function("def is_prime(n:\n  return", "is_prime", &primes), Judgement::Wrong(why) if why.starts_with("not Python"))
    );
    assert!(matches!(judge_function("x = 1", "is_prime", &primes), Judgement::Wrong(_)));
}

#[test]
fn recursion_closures_and_exceptions() {
    let source = "
def outer(n):
    count = 0
    def step(k):
        nonlocal count
        count += 1
        return 1 if k <= 1 else k * step(k - 1)
    try:
        result = step(n)
        [][1]
    except (IndexError, KeyError) as error:
        pass
    else:
        return None
    finally:
        count += 100
    return [result, count]
";
    assert_eq!(judge_function(source, "outer", &cases(json!([[[5], [120, 105]]]))), Judgement::Right);
}

#[test]
fn nothing_runs_away() {
    let one = cases(json!([[[1], 1]]));
    for (source, what) in [
        ("def f(n):\n    while True:\n        pass", "steps"),
        ("def f(n):\n    return f(n)", "RecursionError"),
        ("def f(n):\n    return [0] * 10 ** 12", "memory"),
        ("def f(n):\n    x = 'a'\n    while True:\n        x = x + x", "memory"),
        ("def f(n):\n    a = []\n    while True:\n        a.extend(a)\n        a.append(1)", "memory"),
        ("def f(n):\n    return 'a'.replace('', 'b' * 3000000)", "memory"),
        ("def f(n):\n    return sum(range(10 ** 15))", "steps"),
    ] {
        let judged = judge_function(source, "f", &one);
        assert!(matches!(&judged, Judgement::Wrong(why) if why.contains(what)), "{source}: {judged:?}");
    }
    let deep = format!("def f(n):\n    return {}1", "-".repeat(12_000));
    assert!(
        matches!(judge_function(&deep, "f", &one), Judgement::Wrong(why) if why.contains("RecursionError"))
    );
    let nested = format!("def f(n):\n    return {}{}", "[".repeat(3_000), "]".repeat(3_000));
    assert!(matches!(judge_function(&nested, "f", &one), Judgement::Wrong(_)));
    assert!(matches!(judge_function(&"#".repeat(20_000), "f", &one), Judgement::Unjudged(_)));
}

#[test]
fn the_unknown_is_named_and_not_held_against_the_model() {
    let one = cases(json!([[[1], 1]]));
    for (source, what) in [
        ("import os\ndef f(n): return 1", "`import os`"),
        ("class A: pass\ndef f(n): return 1", "class"),
        ("def f(n): return 2 ** 200", "128 bits"),
        ("def f(n): return open('x')", "`open`"),
    ] {
        let judged = judge_function(source, "f", &one);
        assert!(matches!(&judged, Judgement::Unjudged(why) if why.contains(what)), "{source}: {judged:?}");
    }
    assert!(
        matches!(judge_function("def f(n): return nowhere", "f", &one), Judgement::Wrong(why) if why.contains("NameError"))
    );
}
