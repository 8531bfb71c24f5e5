//! A world with one disk, and operations on the disk.
#![allow(dead_code, reason = "each test program uses a part")]

use base::{BufList, IoError, SliceList};
use rt::{FileId, Op, Order, Rt};
use sim::{DiskModel, World};

#[derive(Clone)]
pub struct World1 {
    pub world: World,
    pub disk: FileId,
    pub rt: Rt,
    seed: u64,
}

impl World1 {
    pub fn new(seed: u64, size: u64) -> World1 {
        let world = World::new(seed);
        let disk = world.add_disk(DiskModel::nvme(size));
        let rt = Rt::new(world.backend(), Order::Seeded(seed), 4096);
        World1 { world, disk, rt, seed }
    }

    pub fn reboot(&self) -> World1 {
        World1 { rt: Rt::new(self.world.backend(), Order::Seeded(self.seed), 4096), ..self.clone() }
    }
}

pub fn cut(w: &World1) {
    w.world.power_cut();
    w.rt.kill();
}

pub fn fill(rt: &Rt, file: FileId, offset: u64, len: usize, value: u8, fua: bool) -> Op {
    let mut buf = rt.bufs().take(len);
    buf.fill(value);
    Op::Write { file, offset, data: SliceList::from_iter([buf.freeze()]), fua }
}

pub async fn write(rt: &Rt, file: FileId, offset: u64, len: usize, value: u8) {
    assert_eq!(rt.op(fill(rt, file, offset, len, value, false)).await.result, Ok(len as u64));
}

pub async fn flush(rt: &Rt, file: FileId) {
    assert_eq!(rt.op(Op::Flush { file }).await.result, Ok(0));
}

pub async fn read(rt: &Rt, file: FileId, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
    let bufs = BufList::from_iter([rt.bufs().take(len)]);
    let done = rt.op(Op::Read { file, offset, bufs }).await;
    let n = done.result? as usize;
    Ok(done.into_bufs()[0][..n].to_vec())
}
