//! TLS files in PEM form: the certificate with its chain, and its private key. The key file must be accessible to the
//! owner alone, as key files of clients are.

use super::reader::Reader;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use worker_orcd_cli::key_file::read_private;

/// ALPN protocol.
const HTTP_1_1: &[u8] = b"http/1.1";

/// `None` without TLS files.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<Arc<ServerConfig>> {
    for (one, other) in [("tls-cert", "tls-key"), ("tls-key", "tls-cert")] {
        if reader.has(one) && !reader.has(other) {
            let origin = reader.origin(one).to_owned();
            reader.error(format!("{origin} needs --{other}"));
        }
    }
    let chain = reader.optional("tls-cert", read_chain);
    let key = reader.optional("tls-key", read_key);
    let made = server(chain?, key?);
    made.map_err(|why| {
        let (cert, key) = (reader.origin("tls-cert"), reader.origin("tls-key"));
        reader.error(format!("{cert} with {key}: {why}"));
    })
    .ok()
}

fn read_chain(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = fs::read(path).map_err(|error| format!("{path} cannot be read: {error}"))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        _ => Err(format!("{path} holds no certificate in PEM form")),
    }
}

fn read_key(path: &str) -> Result<PrivateKeyDer<'static>, String> {
    let text = read_private(Path::new(path)).map_err(|why| format!("{path} {why}"))?;
    // The parser's error could quote the file.
    PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|_| format!("{path} holds no private key in PEM form"))
}

fn server(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    server.alpn_protocols = vec![HTTP_1_1.to_vec()];
    Ok(Arc::new(server))
}
