//! Properties of all messages and all byte streams.

mod support;

use proptest::collection::vec;
use proptest::prelude::*;
use support::{Message, strategies};
use worker_orcd_ipc::frame::write_frame;
use worker_orcd_ipc::{
    CodecError, Command, Envelope, FrameError, FrameReader, PREAMBLE_BYTES, Preamble, decode,
    encode,
};

proptest! {
    #[test]
    fn every_command_survives_encoding(command in strategies::command()) {
        let back: Command = decode(&encode(&command).unwrap()).unwrap();
        prop_assert_eq!(back, command);
    }

    #[test]
    fn every_event_survives_encoding(envelope in strategies::envelope()) {
        let back: Envelope = decode(&encode(&envelope).unwrap()).unwrap();
        prop_assert_eq!(back, envelope);
    }

    /// The split of a stream into reads does not change its frames.
    #[test]
    fn any_split_of_a_stream_gives_the_same_frames(
        messages in vec(strategies::message(), 1..6),
        cuts in vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let payloads: Vec<Vec<u8>> = messages.iter().map(Message::payload).collect();
        let stream = stream_of(&payloads);
        let mut reader = FrameReader::new();
        let mut seen = Vec::new();
        for piece in pieces(&stream, &cuts) {
            reader.push(piece);
            while let Some(frame) = reader.next_frame().unwrap() {
                seen.push(frame.to_vec());
            }
        }
        prop_assert_eq!(seen, payloads);
        prop_assert_eq!(reader.pending_bytes(), 0);
    }

    /// Frames can stay in the reader and be taken later.
    #[test]
    fn frames_wait_until_they_are_taken(messages in vec(strategies::message(), 1..6)) {
        let payloads: Vec<Vec<u8>> = messages.iter().map(Message::payload).collect();
        let mut reader = FrameReader::new();
        reader.push(&Preamble::OURS.to_bytes());
        for payload in &payloads {
            let mut frame = Vec::new();
            write_frame(&mut frame, payload).unwrap();
            reader.push(&frame);
        }
        for payload in &payloads {
            prop_assert_eq!(reader.next_frame().unwrap(), Some(payload.as_slice()));
        }
        prop_assert_eq!(reader.next_frame().unwrap(), None);
    }

    /// No prefix of a message is a message, so truncation is always detected.
    #[test]
    fn a_truncated_message_is_an_error(
        message in strategies::message(),
        cut in any::<prop::sample::Index>(),
    ) {
        let payload = message.payload();
        let cut = &payload[..cut.index(payload.len())];
        let failed = match message {
            Message::Down(_) => decode::<Command>(cut).is_err(),
            Message::Up(_) => decode::<Envelope>(cut).is_err(),
        };
        prop_assert!(failed);
    }

    #[test]
    fn bytes_after_a_message_are_an_error(
        message in strategies::message(),
        tail in vec(any::<u8>(), 1..9),
    ) {
        let mut payload = message.payload();
        payload.extend_from_slice(&tail);
        let error = match message {
            Message::Down(_) => decode::<Command>(&payload).err(),
            Message::Up(_) => decode::<Envelope>(&payload).err(),
        };
        let counted = matches!(error, Some(CodecError::TrailingBytes(left)) if left == tail.len());
        prop_assert!(counted, "{:?}", error);
    }

    /// A changed byte may yield another valid message, but never a panic. Each decoded message can be encoded and decoded
    /// again.
    #[test]
    fn a_mutated_message_is_another_message_or_an_error(
        message in strategies::message(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut payload = message.payload();
        let at = at.index(payload.len());
        payload[at] = byte;
        // The comparison is of bytes, because a mutated float may be NaN, which is not equal to itself.
        if let Ok(command) = decode::<Command>(&payload) {
            let again = encode(&command).unwrap();
            prop_assert_eq!(encode(&decode::<Command>(&again).unwrap()).unwrap(), again);
        }
        if let Ok(envelope) = decode::<Envelope>(&payload) {
            let again = encode(&envelope).unwrap();
            prop_assert_eq!(encode(&decode::<Envelope>(&again).unwrap()).unwrap(), again);
        }
    }

    /// Random bytes in random pieces yield frames or an error, never a panic. After an error the reader returns the same error
    /// again and no further frames.
    #[test]
    fn random_bytes_never_panic_and_an_error_is_permanent(
        noise in vec(any::<u8>(), 0..200),
        valid_preamble in any::<bool>(),
        cuts in vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let mut stream = if valid_preamble { Preamble::OURS.to_bytes().to_vec() } else { vec![] };
        stream.extend_from_slice(&noise);
        let mut reader = FrameReader::new();
        let mut first_error: Option<FrameError> = None;
        for piece in pieces(&stream, &cuts) {
            reader.push(piece);
            loop {
                match reader.next_frame() {
                    Ok(Some(_)) => prop_assert!(first_error.is_none()),
                    Ok(None) => { prop_assert!(first_error.is_none()); break }
                    Err(error) => {
                        prop_assert_eq!(first_error.get_or_insert(error.clone()), &error);
                        break;
                    }
                }
            }
        }
    }

    /// A changed bit in the preamble is always detected, before any frame is read.
    #[test]
    fn a_flipped_bit_in_the_preamble_is_refused(bit in 0..PREAMBLE_BYTES * 8) {
        let mut bytes = Preamble::OURS.to_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let error = Preamble::check(bytes).unwrap_err();
        let expected = match bit / 8 {
            0..4 => matches!(error, FrameError::NotOurs(_)),
            4..6 => matches!(error, FrameError::Version { .. }),
            _ => error == FrameError::Reserved,
        };
        prop_assert!(expected, "{:?}", error);
    }
}

fn stream_of(payloads: &[Vec<u8>]) -> Vec<u8> {
    let mut stream = Preamble::OURS.to_bytes().to_vec();
    for payload in payloads {
        write_frame(&mut stream, payload).unwrap();
    }
    stream
}

fn pieces<'a>(stream: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
    at.extend([0, stream.len()]);
    at.sort_unstable();
    at.windows(2)
        .map(|pair| &stream[pair[0]..pair[1]])
        .collect()
}
