//! File of a repository on Hugging Face, or on the mirror that `HF_ENDPOINT` names.
//!
//! ```text
//! HEAD …/resolve/main/FILE ─→ commit, size, SHA-256 ─→ GET …/resolve/COMMIT/FILE ─→ compare ─→ rename
//!                                                        └─→ FILE.SHA256.partial
//! ```

use super::curl::Curl;
use super::download::{Download, Transfer};
use super::expected_file::ExpectedFile;
use crate::model_name::{Choice, chosen, is_gguf_path};
use anyhow::{Context, Error, Result, bail, ensure};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use worker_orcd_ipc::model_parts;
use worker_orcd_text::printable::printable;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Branch for a lookup without a commit.
const BRANCH: &str = "main";

/// A renamed repository redirects once or twice.
const MAX_REDIRECTS: usize = 5;

/// Listings of the largest repositories have a few megabytes.
const MAX_LISTING_BYTES: u64 = 8 << 20;

const MAX_HEADER_BYTES: u64 = 64 << 10;

/// Repository `owner/name`. Both parts are safe as path components.
pub(super) struct Hub {
    endpoint: String,
    curl: Curl,
}

impl Hub {
    pub(super) fn of_environment(transfer: Transfer) -> Result<Self> {
        let endpoint = std::env::var("HF_ENDPOINT").ok();
        let endpoint = endpoint.filter(|it| !it.is_empty());
        let endpoint = endpoint.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            curl: Curl::of_environment(transfer)?,
        })
    }

    /// Downloads the selected file to `directory/owner/name/file`.
    pub(super) fn pull(
        &self,
        repository: &str,
        choice: Choice<'_>,
        directory: &Path,
        download: &Download,
    ) -> Result<PathBuf> {
        let file = match choice {
            // Mirrors may have no listing.
            Choice::File(file) => chosen(repository, choice, &[file]).map_err(Error::msg)?,
            _ => None,
        };
        let file = match file {
            Some(file) => file.to_owned(),
            None => self.listed_file(repository, choice)?,
        };
        let target = directory.join(repository).join(&file);
        let folder = target.parent().unwrap_or(directory);
        fs::create_dir_all(folder)
            .with_context(|| format!("{} cannot be made", folder.display()))?;
        match model_parts(Path::new(&file)).as_slice() {
            [_] => self.pull_file(repository, &file, &target, download)?,
            parts => self.pull_parts(repository, parts, &target, download)?,
        }
        Ok(target)
    }

    fn pull_file(
        &self,
        repository: &str,
        file: &str,
        target: &Path,
        download: &Download,
    ) -> Result<()> {
        let expected = self.look(repository, file)?;
        if expected.is_kept(target, download)? {
            return Ok(());
        }
        let partial = expected.partial(target);
        expected.transfer(&self.curl, &partial, download)?;
        download.install(&partial, target)
    }

    /// Downloads the files of a model in several parts. They stay in a hidden folder until all are complete and
    /// checked. The first file, which names the model, is renamed last.
    fn pull_parts(
        &self,
        repository: &str,
        files: &[PathBuf],
        target: &Path,
        download: &Download,
    ) -> Result<()> {
        let targets = model_parts(target);
        let look = |file: &PathBuf| self.look(repository, &file.to_string_lossy());
        let promises: Vec<_> = files.iter().map(look).collect::<Result<_>>()?;
        let both = || promises.iter().zip(&targets);
        let kept: Vec<_> = both()
            .map(|(expected, target)| expected.is_kept(target, download))
            .collect::<Result<_>>()?;
        if kept.iter().all(|is_kept| *is_kept) {
            return Ok(());
        }
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let work = target.with_file_name(format!(".{name}.parts"));
        fs::create_dir_all(&work)?;
        let staged: Vec<_> = targets
            .iter()
            .map(|target| work.join(target.file_name().unwrap_or_default()))
            .collect();
        for (((expected, target), staged), is_kept) in both().zip(&staged).zip(kept) {
            if is_kept {
                fs::rename(target, staged)?;
            } else if !staged.exists() || download.digest(staged)? != expected.sha256 {
                let partial = expected.partial(staged);
                expected.transfer(&self.curl, &partial, download)?;
                fs::rename(&partial, staged)?;
            }
        }
        download.check(&staged[0])?;
        for (staged, target) in staged.iter().zip(&targets).rev() {
            fs::rename(staged, target)?;
        }
        fs::remove_dir(&work).with_context(|| format!("{} is left", work.display()))
    }

    /// Selects a file from the repository's listing.
    fn listed_file(&self, repository: &str, choice: Choice<'_>) -> Result<String> {
        let listing = self.listing(repository, BRANCH)?;
        let files = listing.siblings.iter();
        let files: Vec<&str> = files
            .map(|it| it.rfilename.as_str())
            .filter(|file| is_gguf_path(file))
            .collect();
        let file = chosen(repository, choice, &files).map_err(Error::msg)?;
        let file = file.with_context(|| match (choice, files.as_slice()) {
            (Choice::Quantization(tag), [_, ..]) => {
                let names: Vec<_> = files.iter().map(|name| printable(name)).collect();
                let names = names.join("\n  ");
                format!("{repository} holds no .gguf file named …{tag}; it has\n  {names}")
            }
            _ => format!("{repository} holds no .gguf file"),
        })?;
        Ok(file.to_owned())
    }

    /// Commit, size and SHA-256 of a file, from the headers of its URL, or from the hub's API if a mirror omits them.
    fn look(&self, repository: &str, file: &str) -> Result<ExpectedFile> {
        let url = self.address(repository, BRANCH, file);
        let mut answer = Headers::of(&self.curl, &url)?;
        ensure!(answer.status < 400, "{url}: {}", answer.complaint());
        let mut commit = answer.commit();
        for _ in 0..MAX_REDIRECTS {
            let moved = answer
                .location()
                .filter(|_| answer.linked_sha256().is_none());
            let Some(to) = moved.and_then(|to| self.own_address(to)) else {
                break;
            };
            let next = Headers::of(&self.curl, &to)?;
            // The storage host may refuse HEAD requests.
            if next.status >= 400 {
                break;
            }
            commit = commit.or(next.commit());
            answer = next;
        }
        let revision = commit.as_deref().unwrap_or(BRANCH);
        let (bytes, sha256) = match (answer.size(), answer.linked_sha256()) {
            (Some(bytes), Some(sha256)) => (bytes, sha256),
            _ => self.listed(repository, revision, file)?,
        };
        Ok(ExpectedFile {
            url: self.address(repository, revision, file),
            bytes,
            sha256,
        })
    }

    fn listed(&self, repository: &str, revision: &str, file: &str) -> Result<(u64, String)> {
        let listing = self.listing(repository, revision)?;
        let mut siblings = listing.siblings.into_iter();
        let blob = siblings.find(|it| it.rfilename == file);
        match blob.and_then(|it| it.lfs) {
            Some(Blob { size, sha256 }) if is_hex(&sha256, 64) => {
                Ok((size, sha256.to_ascii_lowercase()))
            }
            _ => bail!(
                "{} names no size and SHA-256 of {file:?}: nothing would show that its bytes are \
                 the right ones",
                self.endpoint
            ),
        }
    }

    fn listing(&self, repository: &str, revision: &str) -> Result<Listing> {
        let endpoint = &self.endpoint;
        let url = format!("{endpoint}/api/models/{repository}/revision/{revision}?blobs=true");
        let options = ["--fail", "--location"];
        let text = self.curl.ask(&url, &options, MAX_LISTING_BYTES)?;
        serde_json::from_slice(&text).with_context(|| format!("{url}: no listing"))
    }

    fn address(&self, repository: &str, revision: &str, file: &str) -> String {
        let endpoint = &self.endpoint;
        format!(
            "{endpoint}/{repository}/resolve/{revision}/{}",
            encode(file)
        )
    }

    /// Redirect within the hub: a renamed repository. Other redirects lead to the storage host, which sends no
    /// metadata.
    fn own_address(&self, location: &str) -> Option<String> {
        if location.starts_with('/') && !location.starts_with("//") {
            let scheme = self.endpoint.find("://").map_or(0, |at| at + 3);
            let host = self.endpoint[scheme..].find('/');
            let origin = host.map_or(self.endpoint.as_str(), |at| &self.endpoint[..scheme + at]);
            return Some(format!("{origin}{location}"));
        }
        let rest = location.strip_prefix(&self.endpoint)?;
        rest.starts_with('/').then(|| location.to_owned())
    }
}

/// Listing of a repository. Other fields are ignored.
#[derive(Debug, Deserialize)]
struct Listing {
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    rfilename: String,
    lfs: Option<Blob>,
}

#[derive(Debug, Deserialize)]
struct Blob {
    size: u64,
    sha256: String,
}

/// Head of an answer.
struct Headers {
    status: u16,
    /// Fields, with names in lower case.
    fields: Vec<(String, String)>,
}

impl Headers {
    fn of(curl: &Curl, url: &str) -> Result<Self> {
        let options = [
            "--head",
            "--suppress-connect-headers",
            "--header",
            "Accept-Encoding: identity",
        ];
        let text = curl.ask(url, &options, MAX_HEADER_BYTES)?;
        Self::parse(&String::from_utf8_lossy(&text))
            .with_context(|| format!("{url}: the answer is no HTTP"))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let fields = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        Some(Self { status, fields })
    }

    fn get(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(field, _)| field == name);
        found.next().map(|(_, value)| value.as_str())
    }

    /// Error message of the hub, with a possible remedy.
    fn complaint(&self) -> String {
        let said = self.get("x-error-message").map(printable);
        let said = said.unwrap_or_else(|| format!("the hub answered {}", self.status));
        match self.status {
            401 | 403 => format!("{said}; what is gated or private needs your token in HF_TOKEN"),
            _ => said,
        }
    }

    fn location(&self) -> Option<&str> {
        let is_redirect = (300..400).contains(&self.status);
        self.get("location").filter(|_| is_redirect)
    }

    fn commit(&self) -> Option<String> {
        let named = self.get("x-repo-commit").filter(|it| is_hex(it, 40));
        named.map(str::to_owned)
    }

    /// Size of the file behind a redirect, in bytes.
    fn size(&self) -> Option<u64> {
        let own = self.get("content-length").filter(|_| self.status == 200);
        self.get("x-linked-size").or(own)?.parse().ok()
    }

    /// ETag of a large file, which is its SHA-256.
    fn linked_sha256(&self) -> Option<String> {
        let own = self.get("etag").filter(|_| self.status == 200);
        let tag = self.get("x-linked-etag").or(own)?;
        let tag = tag.trim_start_matches("W/").trim_matches('"');
        is_hex(tag, 64).then(|| tag.to_ascii_lowercase())
    }
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Percent-encodes a path.
fn encode(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.bytes().fold(String::new(), |mut text, byte| {
        if plain(byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_files_tag_is_its_sha256_and_a_small_ones_is_not() {
        let sha256 = "AB".repeat(32);
        let text = format!(
            "HTTP/2 302\r\nX-Linked-Size: 7\r\nX-Linked-ETag: \"{sha256}\"\r\netag: \"x\"\r\n\
             Location: https://cdn.example/a\r\ncontent-length: 99\r\n\r\n"
        );
        let head = Headers::parse(&text).unwrap();
        assert_eq!(head.size(), Some(7));
        assert_eq!(head.linked_sha256(), Some("ab".repeat(32)));
        let git = format!("HTTP/1.1 200 OK\r\nETag: \"{}\"\r\n", "ab".repeat(20));
        assert_eq!(Headers::parse(&git).unwrap().linked_sha256(), None);
        assert!(Headers::parse("SSH-2.0").is_none());
    }

    #[test]
    fn only_redirects_within_the_hub_are_asked_again() {
        let hub = Hub {
            endpoint: "http://mirror/base".to_owned(),
            curl: Curl::with_token("", Transfer::default()).unwrap(),
        };
        for (location, own) in [
            (
                "/new/resolve/main/f",
                Some("http://mirror/new/resolve/main/f"),
            ),
            ("http://mirror/base/f", Some("http://mirror/base/f")),
            ("http://mirror/based/f", None),
            ("//elsewhere/f", None),
            ("https://cdn.example/f", None),
        ] {
            assert_eq!(hub.own_address(location).as_deref(), own, "{location}");
        }
    }

    #[test]
    fn a_path_is_one_address_whatever_is_in_it() {
        assert_eq!(encode("q4/my model[1].gguf"), "q4/my%20model%5B1%5D.gguf");
    }
}
