//! What holds for every message and every byte stream.

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
    fn every_command_survives_the_wire(command in strategies::command()) {
        let back: Command = decode(&encode(&command).unwrap()).unwrap();
        prop_assert_eq!(back, command);
    }

    #[test]
    fn every_event_survives_the_wire(envelope in strategies::envelope()) {
        let back: Envelope = decode(&encode(&envelope).unwrap()).unwrap();
        prop_assert_eq!(back, envelope);
    }

    /// However the kernel cuts a stream into reads, the same frames come out.
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

    /// Frames may also be left in the reader and taken out later.
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

    /// No prefix of a message is a message: a cut is always noticed.
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
    fn bytes_behind_a_message_are_an_error(
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

    /// A changed byte may make another valid message. It never makes a panic, and what decodes
    /// is a message like any other: it can be sent and read again.
    #[test]
    fn a_mutated_message_is_another_message_or_an_error(
        message in strategies::message(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut payload = message.payload();
        let at = at.index(payload.len());
        payload[at] = byte;
        // Compared as bytes: a mutated float may be NaN, which is not equal to itself.
        if let Ok(command) = decode::<Command>(&payload) {
            let again = encode(&command).unwrap();
            prop_assert_eq!(encode(&decode::<Command>(&again).unwrap()).unwrap(), again);
        }
        if let Ok(envelope) = decode::<Envelope>(&payload) {
            let again = encode(&envelope).unwrap();
            prop_assert_eq!(encode(&decode::<Envelope>(&again).unwrap()).unwrap(), again);
        }
    }

    /// Any bytes at all, in any pieces: frames or an error, never a panic, and after an error
    /// the reader says the same again instead of finding frames in what follows.
    #[test]
    fn noise_never_panics_and_an_error_stays(
        noise in vec(any::<u8>(), 0..200),
        honest_preamble in any::<bool>(),
        cuts in vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let mut stream = if honest_preamble { Preamble::OURS.to_bytes().to_vec() } else { vec![] };
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

    /// One changed bit in the preamble is always noticed, before any frame is read.
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
