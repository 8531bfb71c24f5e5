//! The handshake, in every variant.

use base::Duration;

use super::{SIZE, run};
use nbd::Limits;
use nbd::codec::Errno;
use nbd::codec::option::{
    MAX_OPTION, info, info_request, meta_request, opt, put_option, rep, transmit,
};
use nbd::codec::request::Command;
use nbd_client::{ClientError, ClientOptions};

#[test]
fn every_way_in_works_and_reads() {
    for (i, (structured, block_status, export_name)) in [
        (true, true, false),
        (true, false, false),
        (false, false, false),
        (false, false, true),
        (true, true, true),
    ]
    .into_iter()
    .enumerate()
    {
        run(i as u64, Limits::default(), |bed| async move {
            let options = ClientOptions { structured, block_status, export_name };
            let c = bed.try_client("rw", options).await.expect("a client");
            assert_eq!(c.info().size_bytes, SIZE as u64);
            let flags = c.info().flags;
            assert_eq!(flags & transmit::SEND_DF != 0, structured);
            assert_eq!(flags & transmit::READ_ONLY, 0);
            let always = transmit::SEND_FLUSH
                | transmit::SEND_FUA
                | transmit::CAN_MULTI_CONN
                | transmit::SEND_FAST_ZERO;
            assert_eq!(flags & always, always);
            assert_eq!(c.info().block_sizes, (!export_name).then_some([512, 4096, 32 << 20]));
            c.write(4096, &[7; 1024], 0).await.expect("write");
            assert_eq!(c.read(4608, 1024, 0).await.expect("read"), [[7; 512], [0; 512]].concat());
            let status = c.block_status(0, 4096, 0).await;
            if block_status {
                assert_eq!(status, Ok(vec![(4096, 0)]));
            } else {
                assert_eq!(status, Err(ClientError::Errno(Errno::Inval)));
            }
            c.disconnect();
            bed.quiet().await;
            assert_eq!(c.flush().await, Err(ClientError::Closed));
        });
    }
}

#[test]
fn default_and_read_only_and_unknown_exports() {
    run(1, Limits::default(), |bed| async move {
        let o = ClientOptions::default();
        bed.try_client("", o).await.expect("the default export").vanish();
        let ro = bed.client("ro").await;
        assert_ne!(ro.info().flags & transmit::READ_ONLY, 0);
        let perm = Err(ClientError::Errno(Errno::Perm));
        assert_eq!(ro.write(0, &[1; 4096], 0).await, perm);
        assert_eq!(ro.command(Command::Trim, 0, 4096, 0).await, perm);
        assert_eq!(ro.command(Command::WriteZeroes, 0, 4096, 0).await, perm);
        assert_eq!(ro.read(0, 512, 0).await, Ok(vec![0; 512]));
        ro.disconnect();
        let unknown =
            bed.try_client("what", ClientOptions { block_status: false, ..o }).await.err();
        assert_eq!(unknown, Some(ClientError::Refused(rep::ERR_UNKNOWN)));
        let unknown = bed
            .try_client("what", ClientOptions { structured: false, export_name: true, ..o })
            .await
            .err();
        assert_eq!(unknown, Some(ClientError::Closed));
    });
}

#[test]
fn options_are_answered_by_the_book() {
    run(2, Limits::default(), |bed| async move {
        let mut raw = bed.raw(3).await;
        let kinds = |r: &[(u32, Vec<u8>)]| r.iter().map(|r| r.0).collect::<Vec<_>>();
        let list = raw.option(opt::LIST, &[]).await;
        assert_eq!(kinds(&list), [rep::SERVER, rep::SERVER, rep::ACK]);
        assert_eq!(list[1].1, b"\0\0\0\x02roro in memory");
        assert_eq!(kinds(&raw.option(opt::LIST, b"x").await), [rep::ERR_INVALID]);
        for unsupported in [opt::STARTTLS, opt::EXTENDED_HEADERS, 4, 12, u32::MAX] {
            assert_eq!(kinds(&raw.option(unsupported, b"whatever").await), [rep::ERR_UNSUP]);
        }
        // Without structured replies no metadata.
        let meta = meta_request("rw", &["base:allocation"]);
        assert_eq!(kinds(&raw.option(opt::SET_META_CONTEXT, &meta).await), [rep::ERR_INVALID]);
        assert_eq!(kinds(&raw.option(opt::STRUCTURED_REPLY, b"x").await), [rep::ERR_INVALID]);
        assert_eq!(kinds(&raw.option(opt::STRUCTURED_REPLY, &[]).await), [rep::ACK]);
        let set = raw.option(opt::SET_META_CONTEXT, &meta).await;
        assert_eq!(
            set,
            [(rep::META_CONTEXT, b"\0\0\0\x01base:allocation".to_vec()), (rep::ACK, vec![])]
        );
        for (queries, found) in [
            (&[][..], true),
            (&["base:"][..], true),
            (&["x-a:b", "base:allocation"][..], true),
            (&["base:else"][..], false),
            (&["x-a:"][..], false),
        ] {
            let listed = raw.option(opt::LIST_META_CONTEXT, &meta_request("rw", queries)).await;
            assert_eq!(listed.len(), 1 + usize::from(found), "{queries:?}");
        }
        let unknown = raw.option(opt::LIST_META_CONTEXT, &meta_request("what", &[])).await;
        assert_eq!(kinds(&unknown), [rep::ERR_UNKNOWN]);
        assert_eq!(kinds(&raw.option(opt::INFO, b"\0\0\0\x05").await), [rep::ERR_INVALID]);
        let all = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE];
        let infos = raw.option(opt::INFO, &info_request("", &all)).await;
        assert_eq!(kinds(&infos), [rep::INFO, rep::INFO, rep::INFO, rep::INFO, rep::ACK]);
        assert_eq!(infos[1].1, b"\0\x01rw");
        assert_eq!(infos[2].1, b"\0\x02rw in memory");
        assert_eq!(infos[3].1, b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0");
        assert_eq!(kinds(&raw.option(opt::ABORT, &[]).await), [rep::ACK]);
        assert!(raw.end().await.is_empty());
    });
}

#[test]
fn a_context_counts_only_for_the_export_it_was_selected_for() {
    run(3, Limits::default(), |bed| async move {
        let mut raw = bed.raw(3).await;
        raw.option(opt::STRUCTURED_REPLY, &[]).await;
        raw.option(opt::SET_META_CONTEXT, &meta_request("ro", &["base:allocation"])).await;
        raw.option(opt::GO, &info_request("rw", &[])).await;
        let r = nbd::codec::request::Request {
            flags: 0,
            command: Command::BlockStatus,
            cookie: 5,
            offset: 0,
            len: 512,
        };
        raw.send(&r.encode()).await;
        assert_eq!(raw.expect(16).await, nbd::codec::reply::simple(5, Some(Errno::Inval)).bytes());
        raw.connection.close();
    });
}

#[test]
fn export_name_pads_with_zeros_unless_declined() {
    for (flags, len) in [(1, 134), (3, 10), (0, 134)] {
        run(4, Limits::default(), |bed| async move {
            let mut raw = bed.raw(flags).await;
            let mut b = Vec::new();
            put_option(&mut b, opt::EXPORT_NAME, b"rw");
            raw.send(&b).await;
            let reply = raw.expect(len).await;
            assert_eq!(reply[..8], (SIZE as u64).to_be_bytes());
            assert!(reply[10..].iter().all(|&b| b == 0));
            let r = nbd::codec::request::Request {
                flags: 0,
                command: Command::Flush,
                cookie: 77,
                offset: 0,
                len: 0,
            };
            raw.send(&r.encode()).await;
            assert_eq!(raw.expect(16).await, nbd::codec::reply::simple(77, None).bytes());
            raw.connection.close();
        });
    }
}

#[test]
fn who_breaks_the_rules_of_the_handshake_is_closed() {
    run(5, Limits::default(), |bed| async move {
        // Flags that were not offered.
        assert!(bed.raw(4).await.end().await.is_empty());
        // Not an option.
        let mut raw = bed.raw(3).await;
        raw.send(&[0x55; 64]).await;
        assert!(raw.end().await.is_empty());
        // An option that is too long: said, then closed; its data is not waited for.
        let mut raw = bed.raw(3).await;
        let mut b = Vec::new();
        put_option(&mut b, opt::GO, &vec![0; MAX_OPTION as usize + 1]);
        raw.send(&b[..16]).await;
        assert_eq!(raw.replies().await[0].0, rep::ERR_TOO_BIG);
        assert!(raw.end().await.is_empty());
        // An option other than EXPORT_NAME from who does not know of replies.
        let mut raw = bed.raw(0).await;
        let mut b = Vec::new();
        put_option(&mut b, opt::LIST, &[]);
        raw.send(&b).await;
        assert!(raw.end().await.is_empty());
    });
}

#[test]
fn who_takes_too_long_is_closed() {
    let limits = Limits { handshake_timeout: Duration::from_secs(2), ..Limits::default() };
    run(6, limits, |bed| async move {
        let start = bed.rt.now();
        let mut raw = bed.raw(3).await;
        assert!(raw.end().await.is_empty());
        let took = bed.rt.now().since(start);
        assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(3), "{took:?}");
        // Once in, one may be silent.
        let c = bed.client("rw").await;
        bed.sleep(60_000).await;
        assert_eq!(c.flush().await, Ok(()));
    });
}
