//! The child's program: whether it is executable, its version, its report on a model, and the confinement of children.

use super::Finding;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

pub(super) fn binary(path: &Path, version: Result<String, String>) -> Finding {
    const SUBJECT: &str = "GPU child";
    const OWN: &str = env!("CARGO_PKG_VERSION");
    let name = path.display();
    match fs::metadata(path) {
        Err(error) => Finding::bad(
            SUBJECT,
            format!("{name}: {error}"),
            "build it (cargo build -p worker-orcd-gpu) or say --child-binary",
        ),
        Ok(file) if file.permissions().mode() & 0o111 == 0 => Finding::bad(
            SUBJECT,
            format!("{name} is not executable"),
            format!("chmod +x {name}"),
        ),
        Ok(_) => match version {
            Ok(version) if version == OWN => Finding::good(SUBJECT, format!("{name} {version}")),
            Ok(version) => Finding::bad(
                SUBJECT,
                format!("{name} is of version {version}, this is {OWN}"),
                "build or install both together",
            ),
            Err(why) => Finding::bad(SUBJECT, why, "say --child-binary with the right one"),
        },
    }
}

/// Not fatal: children serve without confinement, but a compromised child then has all rights of this user.
pub(super) fn confinement(checked: Option<Result<String, String>>) -> Finding {
    const SUBJECT: &str = "confinement";
    match checked {
        None => Finding::note(
            SUBJECT,
            "off",
            "--child-confinement on: without it, code that takes over a child has the rights of this user",
        ),
        Some(Ok(words)) => Finding::good(SUBJECT, words),
        Some(Err(why)) => Finding::note(
            SUBJECT,
            why,
            "a kernel of 6.12 or later with Landlock (lsm=landlock) and seccomp confines children and \
             interpreters; they serve without",
        ),
    }
}

/// `subject`: the model, or the draft model.
pub(super) fn model(
    subject: &'static str,
    checked: Result<String, (String, &'static str)>,
) -> Finding {
    match checked {
        Ok(words) => Finding::good(subject, words),
        Err((why, remedy)) => Finding::bad(subject, why, remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn what_does_not_confine_is_noted_and_is_no_obstacle() {
        let lacking = confinement(Some(Err("no Landlock".to_owned())));
        assert!(matches!(lacking.verdict, Verdict::Note(why, _) if why == "no Landlock"));
    }

    #[test]
    fn a_program_that_is_no_child_or_another_version_is_bad() {
        let file = Path::new("/bin/true");
        let own = binary(file, Ok(env!("CARGO_PKG_VERSION").to_owned()));
        assert!(matches!(own.verdict, Verdict::Good(_)));
        let older = binary(file, Ok("0.0.1".to_owned()));
        assert!(older.is_bad());
        let other = binary(file, Err("it is no child".to_owned()));
        assert!(matches!(other.verdict, Verdict::Bad(why, _) if why == "it is no child"));
    }
}
