//! Clients: they write, read and compare, and judge every error.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{BLOCK_U64, Duration, SECTOR};
use nbd_client::{Client as NbdClient, ClientOptions};
use rt::sync::Semaphore;

use crate::content;
use crate::env::Boot;
use crate::front::{Failure, FailureReason, Front, run};
use crate::model::Kind;
use crate::model::volume::Volume;
use crate::settings::Aim;

/// An answer takes its time: what was true so long ago may be why it is what it is.
const A_MOMENT_NS: u64 = 1_000_000_000;
const SECTOR_U64: u64 = SECTOR as u64;
/// Requests of the mix, in the order of its weights.
const NAMES: [&str; 9] =
    ["write", "sectors", "large", "read", "flush", "discard", "zeroes", "extents", "outside"];

/// A client: some workers that share connections.
pub(crate) struct Client {
    boot: Rc<Boot>,
    nbd: bool,
    connections: RefCell<BTreeMap<u32, NbdClient>>,
    /// One worker at a time connects, the others find what it has opened.
    connecting: Semaphore,
}

/// The circumstances of a request.
struct Context {
    volume: u32,
    /// When it began, in nanoseconds.
    began: u64,
    /// The volume's least size and number of resizes when it began.
    size: u64,
    resizes: usize,
    offset: u64,
    end: u64,
    what: &'static str,
    /// True if the request takes space.
    takes: bool,
    /// True if the request is for zeros that take space.
    allocates: bool,
    /// True if these were more than the pool can have room for, when it began.
    too_many_zeros: bool,
    /// The volume does not need what the cache has.
    direct: bool,
}

impl Client {
    pub fn new(boot: &Rc<Boot>, nbd: bool) -> Rc<Client> {
        Rc::new(Client {
            boot: boot.clone(),
            nbd,
            connections: RefCell::default(),
            connecting: Semaphore::new(1),
        })
    }

    /// A worker: one request after the other until the boot ends.
    pub async fn work(self: Rc<Client>) {
        let env = self.boot.env.clone();
        let weights = env.settings.mix.weights();
        let total: u64 = weights.iter().sum();
        while !env.stopping.get() {
            if env.one_in(16) {
                self.boot.rt.sleep(Duration::from_micros(env.below(20_000))).await;
            }
            if env.resting.get() {
                self.boot.rt.sleep(Duration::from_millis(10)).await;
                continue;
            }
            let live = env.model.borrow().live();
            if live.is_empty() {
                self.boot.rt.sleep(Duration::from_millis(1)).await;
                env.answered.set(env.answered.get() + 1);
                continue;
            }
            let (name, id) = live[env.below(live.len() as u64) as usize].clone();
            let Some(front) = self.front(&name, id).await else { continue };
            let mut pick = env.below(total);
            let kind = weights
                .iter()
                .position(|&w| {
                    if pick < w {
                        true
                    } else {
                        pick -= w;
                        false
                    }
                })
                .unwrap_or(0);
            self.request(NAMES[kind], id, front).await;
            self.vanish();
        }
    }

    /// Now and then, and whatever is under way.
    fn vanish(&self) {
        let env = &self.boot.env;
        if self.nbd && env.settings.vanish > 0 && env.one_in(env.settings.vanish) {
            if let Some((_, c)) = self.connections.borrow_mut().pop_first() {
                env.count("clients vanished", 1);
                c.vanish();
            }
        }
    }

    async fn front(&self, name: &str, id: u32) -> Option<Front> {
        let env = &self.boot.env;
        if !self.nbd {
            let volume = self.boot.volumes.open(name);
            if volume.is_none() && !self.dying(id) {
                env.fail(format!("volume {name:?} cannot be opened"));
            }
            return volume.map(|v| Front::Direct(v, self.boot.rt.clone()));
        }
        let _turn = self.connecting.acquire(1).await;
        if let Some(c) = self.connections.borrow().get(&id) {
            return Some(Front::Nbd(c.clone()));
        }
        let socket = env.world.connect(self.boot.listener);
        let options = ClientOptions { export_name: env.one_in(4), ..ClientOptions::default() };
        match NbdClient::negotiate(&self.boot.rt, socket, name, options).await {
            Ok(c) => {
                env.count("connections", 1);
                self.connections.borrow_mut().insert(id, c.clone());
                Some(Front::Nbd(c))
            }
            Err(e) => {
                if !self.dying(id) {
                    env.fail(format!("export {name:?} cannot be opened: {e:?}"));
                }
                None
            }
        }
    }

    fn dying(&self, id: u32) -> bool {
        self.boot.env.model.borrow().volume(id).is_none_or(|v| v.dying)
    }

    async fn request(&self, what: &'static str, id: u32, front: Front) {
        let env = &self.boot.env;
        let Some((size, sector, resizes, resizing)) = ({
            let model = env.model.borrow();
            model
                .volume(id)
                .map(|v| (v.sizes().0, u64::from(v.sector), v.resizes(), v.resizing.is_some()))
        }) else {
            return;
        };
        let (offset, len) = self.range(what, id, size, sector, front.most_bytes());
        let tail = (offset + len) % BLOCK_U64 != 0 && offset + len == size;
        if resizing && tail && (what == "discard" || what == "zeroes") {
            // Whether it reaches the end of the volume, and so the last block, is not to be said.
            return;
        }
        let takes = matches!(what, "write" | "sectors" | "large" | "zeroes");
        let began = env.world.now().0;
        let (direct, end) = (self.is_direct(id), offset + len);
        let context = Context {
            volume: id,
            began,
            size,
            resizes,
            offset,
            end,
            what,
            takes,
            allocates: false,
            too_many_zeros: false,
            direct,
        };
        match what {
            "read" => self.read(context, front, offset, len).await,
            "flush" => self.flush(context, front).await,
            "extents" => self.extents(context, front, offset, len).await,
            "outside" => self.outside(context, front, size, sector).await,
            "discard" => self.change(context, front, Kind::Discard, offset, len).await,
            "zeroes" => {
                let kind = Kind::Zeroes { allocate: env.one_in(3) };
                self.change(context, front, kind, offset, len).await
            }
            _ => self.change(context, front, Kind::Write, offset, len).await,
        }
    }

    /// A range inside of the volume.
    fn range(&self, what: &str, id: u32, size: u64, sector: u64, most: u64) -> (u64, u64) {
        let env = &self.boot.env;
        let align = match what {
            "write" => BLOCK_U64,
            "sectors" => sector,
            _ if env.one_in(2) => BLOCK_U64,
            _ => sector,
        };
        let longest = match what {
            "sectors" => 24 * SECTOR_U64,
            "large" => 1 << 20,
            "discard" | "zeroes" | "extents" if env.one_in(8) => size,
            "zeroes" | "discard" => 64 * BLOCK_U64,
            "read" if env.one_in(8) => 1 << 20,
            "write" => env.settings.most_blocks * BLOCK_U64,
            _ => 16 * BLOCK_U64,
        };
        // A range of more than this in zeros to be written would fill the pool and take ages.
        let longest =
            if what == "zeroes" && size > 1 << 30 { longest.min(64 * BLOCK_U64) } else { longest };
        let slots = (size / align).max(1);
        let at = if env.below(16) < env.settings.hot {
            // A few hot places, 16 blocks each.
            let place = base::prng::mix64(u64::from(id) * 4 + env.below(3)) % slots;
            place.saturating_add(env.below(16 * BLOCK_U64 / align)).min(slots - 1)
        } else if size > 1 << 30 {
            let area = env.below(64) * (slots / 64);
            area.saturating_add(env.below(64)).min(slots - 1)
        } else {
            env.below(slots)
        };
        let offset = at * align;
        let len = (1 + env.below((longest / align).max(1))) * align;
        let mut len = len.min(size - offset.min(size)).min(most / align * align);
        if len == 0 {
            len = sector.min(size);
            return (size - len, len);
        }
        // By the byte: the sectors at its ends are not compared.
        if what == "read" && !self.nbd && env.one_in(8) && len > 100 {
            return (offset + env.below(50), len - 50 - env.below(50));
        }
        (offset, len)
    }

    async fn change(&self, mut context: Context, front: Front, kind: Kind, offset: u64, len: u64) {
        let env = &self.boot.env;
        let id = context.volume;
        let fua = env.one_in(env.settings.fua);
        if env.one_in(4) {
            self.is_full();
        }
        context.allocates = matches!(kind, Kind::Zeroes { allocate: true });
        context.too_many_zeros = self.are_too_many_zeros(&context);
        let op = env.model.borrow_mut().begin(id, kind, offset, len);
        env.begins(op, id, context.what, offset, len);
        let rt = &self.boot.rt;
        let outcome = match kind {
            Kind::Write => {
                let mut data = rt.bufs().take(len as usize);
                content::fill(&mut data, id, offset / SECTOR_U64, op);
                run(rt, async move { front.write(offset, data.freeze(), fua).await }).await
            }
            Kind::Discard => run(rt, async move { front.discard(offset, len, fua).await }).await,
            Kind::Zeroes { allocate } => {
                run(rt, async move { front.zeroes(offset, len, allocate, fua).await }).await
            }
        };
        let closed = outcome.as_ref().is_err_and(|e| e.why == FailureReason::Closed);
        self.tell(op, &outcome, fua);
        if !closed {
            env.model.borrow_mut().end(id, op, outcome.is_ok(), fua);
        }
        if fua && outcome.is_ok() {
            env.note_flush();
        }
        if let Err(e) = outcome {
            self.judge(&context, &e);
        }
        env.count(context.what, 1);
    }

    fn tell(&self, op: u64, outcome: &Result<(), Failure>, fua: bool) {
        let how = match outcome {
            Ok(()) if fua => "done, durable".to_owned(),
            Ok(()) => "done".to_owned(),
            Err(e) => format!("failed: {}", e.text),
        };
        self.boot.env.ends(op, how);
    }

    async fn read(&self, context: Context, front: Front, offset: u64, len: u64) {
        let env = &self.boot.env;
        let id = context.volume;
        let op = env.model.borrow_mut().begin_read(id);
        env.begins(op, id, context.what, offset, len);
        let outcome = run(&self.boot.rt, async move { front.read(offset, len).await }).await;
        env.count("read", 1);
        match outcome {
            Ok(data) if data.len() as u64 == len => {
                env.ends(op, "read");
                let verdict = env.model.borrow_mut().end_read(id, op, offset, &data);
                match verdict {
                    Ok(too_hard) => env.count("blocks that could not be judged", too_hard),
                    Err(m) => env.fail_at(id, m.block, &m.text),
                }
            }
            Ok(data) => env.fail(format!("a read of {len} bytes gave {}", data.len())),
            Err(e) => {
                env.model.borrow_mut().drop_read(id, op);
                self.tell(op, &Err(e.clone()), false);
                self.judge(&context, &e);
            }
        }
    }

    async fn flush(&self, context: Context, front: Front) {
        let env = &self.boot.env;
        let from = env.model.borrow_mut().begin_flush();
        // Flushes have no number in the model: their tick is one of their own in the story.
        let op = from | 1 << 63;
        env.begins(op, context.volume, "flush", 0, 0);
        let outcome = run(&self.boot.rt, async move { front.flush().await }).await;
        self.tell(op, &outcome, false);
        env.count("flush", 1);
        match outcome {
            Ok(()) => {
                env.model.borrow_mut().end_flush(context.volume, from);
                env.note_flush();
            }
            Err(e) => self.judge(&context, &e),
        }
    }

    async fn extents(&self, context: Context, front: Front, offset: u64, len: u64) {
        let env = &self.boot.env;
        let outcome = run(&self.boot.rt, async move { front.extents(offset, len).await }).await;
        env.count("extents", 1);
        env.answered.set(env.answered.get() + 1);
        match outcome {
            Ok(parts) => {
                let sum: u64 = parts.iter().map(|p| p.0).sum();
                if parts.is_empty() || sum > len || parts.iter().any(|p| p.0 == 0) {
                    env.fail(format!("extents of {len} bytes at {offset}: {parts:?}"));
                }
            }
            Err(e) => self.judge(&context, &e),
        }
    }

    /// A request behind the end must be refused. While the size changes it cannot be said where
    /// that is.
    async fn outside(&self, context: Context, front: Front, size: u64, sector: u64) {
        let env = &self.boot.env;
        let most = env.model.borrow().volume(context.volume).map_or(0, |v| v.sizes().1);
        let offset = if env.one_in(2) { most } else { most.saturating_sub(sector) };
        let outcome =
            run(&self.boot.rt, async move { front.read(offset, 2 * sector).await.map(|_| ()) })
                .await;
        env.count("outside", 1);
        let (now, resizes) = {
            let model = env.model.borrow();
            model.volume(context.volume).map_or((0, 0), |v| (v.sizes().1, v.resizes()))
        };
        match outcome {
            Ok(()) if resizes == context.resizes && now == size => env.fail(format!(
                "a read of {} bytes at {offset} of a volume of {size} bytes was answered",
                2 * sector
            )),
            Ok(()) => {}
            Err(e) => self.judge(&Context { end: u64::MAX, ..context }, &e),
        }
    }

    fn is_direct(&self, id: u32) -> bool {
        self.boot.env.model.borrow().volume(id).is_some_and(Volume::is_direct)
    }

    /// Whether an error may be.
    fn judge(&self, context: &Context, e: &Failure) {
        let env = &self.boot.env;
        let (size, resizes, dying) = {
            let model = env.model.borrow();
            model.volume(context.volume).map_or((0, 0, true), |v| {
                (v.least_size_since(context.resizes), v.resizes(), v.dying)
            })
        };
        let outside = context.end > size.min(context.size)
            && (context.end == u64::MAX || resizes != context.resizes);
        let allowed = match e.why {
            FailureReason::Closed => env.settings.vanish > 0,
            FailureReason::Gone => dying,
            // Over the wire, everything is outside of a volume that is gone.
            FailureReason::Invalid | FailureReason::NoSpace if dying => true,
            FailureReason::Invalid => outside,
            FailureReason::NoSpace if outside => true,
            FailureReason::NoSpace => {
                env.count("requests refused for want of space", 1);
                // One piece of it may have found no room long before the last one had ended.
                // Nothing is allocated from a block group whose checksums are lost.
                env.host_full.get()
                    || env.unreachable.borrow().checksums()
                    || (context.takes && self.was_full_since(context.began))
                    || context.too_many_zeros
                    || self.are_too_many_zeros(context)
            }
            // The pool serves these when the cache fails.
            FailureReason::Io
                if env.settings.aim == Some(Aim::Through)
                    && context.direct
                    && self.is_direct(context.volume) =>
            {
                false
            }
            FailureReason::Io => {
                env.count("requests failed", 1);
                match context.what {
                    "read" => env.may_be_unreadable(
                        context.volume,
                        context.offset,
                        context.end - context.offset,
                    ),
                    // A write of whole blocks reads nothing. Nothing is allocated from a block
                    // group whose checksums are lost.
                    _ if env.unreachable.borrow().checksums() => {
                        !matches!(context.what, "write" | "flush")
                            || context.end % BLOCK_U64 != 0
                            || e.text.contains("is full")
                    }
                    _ => env.errors_allowed() || env.cannot_reach(context.volume),
                }
            }
            FailureReason::Odd => false,
        };
        if !allowed {
            let pool = self.boot.volumes.pool().status().pool;
            let cache = self.boot.volumes.cache().map(|c| c.status());
            env.fail(format!(
                "{} of volume {} failed: {}\n{} of {} bytes used\n{cache:?}",
                context.what, context.volume, e.text, pool.used_bytes, pool.capacity_bytes
            ));
        }
    }

    /// True if a request is for zeros that take space, and for more than the pool can have room for
    /// beside what other volumes have, and what is dirty. What is not of a volume any more may
    /// still be in use: a request waits until it is free.
    fn are_too_many_zeros(&self, context: &Context) -> bool {
        if !context.allocates {
            return false;
        }
        let (pool, model) = (self.boot.volumes.pool(), self.boot.env.model.borrow());
        // What snapshots alone have is not known: the pool goes by what is free.
        if pool.snapshots().any() && context.end - context.offset > pool.available_bytes() {
            return true;
        }
        let others = pool.volumes().into_iter();
        let others = others.filter(|v| model.number_of(&v.name) != Some(context.volume));
        let others: u64 = others.map(|v| v.allocated_bytes).sum();
        let status = pool.status().pool;
        let taken = others + status.reserved_bytes + self.kept_for_metadata(status.capacity_bytes);
        context.end - context.offset + taken > status.capacity_bytes
    }

    /// Metadata keeps room for itself, a 32nd and two groups at least.
    fn kept_for_metadata(&self, capacity_bytes: u64) -> u64 {
        let group = self.boot.env.settings.group_bytes;
        (capacity_bytes / 32).next_multiple_of(group).max(2 * group)
    }

    /// True if it may be that the pool has no room, or had none a moment ago: an answer takes its
    /// time.
    fn is_full(&self) -> bool {
        let env = &self.boot.env;
        let now = env.world.now().0;
        let status = self.boot.volumes.pool().status().pool;
        let free = status.capacity_bytes.saturating_sub(status.used_bytes);
        // Some of that is reserved: for what is dirty, for every request under way, and for the
        // nodes that they change.
        let reserved = self.boot.volumes.cache().map_or(0, |c| {
            let dirty = c.status().dirty_bytes;
            dirty + dirty / 10 + env.bytes_in_flight(1 << 20) + 3 * env.settings.group_bytes
        });
        // Some groups are as good as full.
        let group = env.settings.group_bytes;
        let kept = self.kept_for_metadata(status.capacity_bytes);
        if free <= kept + 2 * group + 4 * env.settings.pool.dirty_nodes * BLOCK_U64 + reserved {
            env.full_at.set(Some(now));
        }
        self.was_full_at(now)
    }

    /// The same of any time since a request began.
    fn was_full_since(&self, began: u64) -> bool {
        self.is_full() || self.was_full_at(began)
    }

    fn was_full_at(&self, when: u64) -> bool {
        self.boot.env.full_at.get().is_some_and(|at| at + A_MOMENT_NS > when)
    }
}
