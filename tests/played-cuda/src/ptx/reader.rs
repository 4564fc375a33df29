//! Parser: text to labels, scopes, declarations and instructions with their operands.

/// Piece of a kernel's body.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement<'a> {
    Open,
    Close,
    Label(&'a str),
    /// Text without the period, such as `reg .b32 %r<5>`.
    Declaration(&'a str),
    Instruction(Text<'a>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Text<'a> {
    pub guard: Option<(&'a str, bool)>,
    /// Parts of the opcode, such as those of `cvt.rn.f16.f32`.
    pub opcode: Vec<&'a str>,
    pub operands: Vec<Operand<'a>>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Operand<'a> {
    /// Register, label, variable or special register.
    Name(&'a str),
    /// Register and predicate: `%r1|%p2`.
    Pair(&'a str, &'a str),
    Number(u64),
    /// `[name+offset]`.
    Place(&'a str, i64),
    Vector(Vec<Operand<'a>>),
}

/// Statements between a kernel's braces.
///
/// # Errors
/// The text that is no statement.
pub fn statements(mut text: &str) -> Result<Vec<Statement<'_>>, String> {
    let mut all = Vec::new();
    loop {
        text = past_blanks(text);
        let Some(first) = text.chars().next() else {
            return Ok(all);
        };
        match first {
            '{' | '}' => {
                all.push(if first == '{' {
                    Statement::Open
                } else {
                    Statement::Close
                });
                text = &text[1..];
                continue;
            }
            _ => {
                let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"$_".contains(c));
                if let Some(colon) = end.filter(|end| text[*end..].starts_with(':')) {
                    all.push(Statement::Label(&text[..colon]));
                    text = &text[colon + 1..];
                    continue;
                }
            }
        }
        let (statement, rest) = text.split_once(';').ok_or("a statement without an end")?;
        all.push(match statement.strip_prefix('.') {
            Some(declaration) => Statement::Declaration(declaration),
            None => Statement::Instruction(instruction(statement)?),
        });
        text = rest;
    }
}

fn past_blanks(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        match text.strip_prefix("//") {
            Some(comment) => text = comment.split_once('\n').map_or("", |(_, rest)| rest),
            None => return text,
        }
    }
}

fn instruction(text: &str) -> Result<Text<'_>, String> {
    let text = text.trim();
    let (guard, text) = match text.strip_prefix('@') {
        None => (None, text),
        Some(guarded) => {
            let (name, rest) = guarded
                .split_once(char::is_whitespace)
                .ok_or("a guard of nothing")?;
            let guard = match name.strip_prefix('!') {
                Some(name) => (name, true),
                None => (name, false),
            };
            (Some(guard), rest.trim_start())
        }
    };
    let (opcode, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    Ok(Text {
        guard,
        opcode: opcode.split('.').collect(),
        operands: parts(operands).map(operand).collect::<Result<_, _>>()?,
    })
}

/// Parts between commas; braces protect theirs.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |c| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

fn operand(text: &str) -> Result<Operand<'_>, String> {
    if let Some(inner) = text.strip_prefix('{').and_then(|it| it.strip_suffix('}')) {
        let inner = parts(inner).map(operand).collect::<Result<_, _>>()?;
        return Ok(Operand::Vector(inner));
    }
    if let Some(inner) = text.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
        let (name, offset) = inner.split_once('+').unwrap_or((inner, "0"));
        let offset = offset
            .trim()
            .parse()
            .map_err(|_| format!("{text} is no place"))?;
        return Ok(Operand::Place(name.trim(), offset));
    }
    if let Some((register, predicate)) = text.split_once('|') {
        return Ok(Operand::Pair(register, predicate));
    }
    match number(text) {
        Some(number) => Ok(Operand::Number(number)),
        None => Ok(Operand::Name(text)),
    }
}

/// Integers, and floats by their bits: `0f3F800000`.
fn number(text: &str) -> Option<u64> {
    if let Some(bits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
        return u32::from_str_radix(bits, 16).ok().map(u64::from);
    }
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    let text = text.strip_suffix('U').unwrap_or(text);
    let negative = text.parse::<i64>().ok().map(i64::cast_unsigned);
    negative.or_else(|| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_told_apart() {
        let text = "
            .reg .b32 %r<5>; // five
            $L__BB0_1:
            @!%p1 bra $L__BB0_1;
            {  cvt.rn.f16.f32 low, %f1;}
            shfl.sync.bfly.b32 %r1|%p2, %r2, 0x1f, -1, %r3;
            st.global.v2.f32 [%rd1+-8], {%f1, 0f3F800000};
        ";
        let found = statements(text).expect("statements");
        assert_eq!(found[0], Statement::Declaration("reg .b32 %r<5>"));
        assert_eq!(found[1], Statement::Label("$L__BB0_1"));
        let Statement::Instruction(branch) = &found[2] else {
            panic!("{:?}", found[2]);
        };
        assert_eq!(branch.guard, Some(("%p1", true)));
        assert_eq!(found[3], Statement::Open);
        assert_eq!(found[5], Statement::Close);
        let Statement::Instruction(shuffle) = &found[6] else {
            panic!("{:?}", found[6]);
        };
        assert_eq!(shuffle.operands[0], Operand::Pair("%r1", "%p2"));
        assert_eq!(
            shuffle.operands[2..4],
            [Operand::Number(31), Operand::Number(u64::MAX)]
        );
        let Statement::Instruction(store) = &found[7] else {
            panic!("{:?}", found[7]);
        };
        assert_eq!(store.operands[0], Operand::Place("%rd1", -8));
        let vector = vec![Operand::Name("%f1"), Operand::Number(0x3F80_0000)];
        assert_eq!(store.operands[1], Operand::Vector(vector));
    }
}
