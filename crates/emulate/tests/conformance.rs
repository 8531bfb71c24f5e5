//! The simulation passes the suite of every backend also with all files emulated.

use conformance::{Harness, SLOTS};
use emulate::{Emulate, Emulations};
use rt::{FileId, Order, Rt, SocketId};
use sim::{DiskModel, World};

struct Slow {
    world: World,
    rt: Rt,
    emulations: Emulations,
    what: Emulate,
}

impl Harness for Slow {
    fn rt(&self) -> Rt {
        self.rt.clone()
    }
    fn file(&mut self, len: u64) -> FileId {
        let file = self.world.add_disk(DiskModel::nvme(len));
        self.emulations.add(file, self.what, len);
        file
    }
    fn listener(&mut self) -> SocketId {
        self.world.listener()
    }
    fn connect(&mut self, listener: SocketId) -> SocketId {
        self.world.connect(listener)
    }
}

#[test]
fn passes() {
    for what in [Emulate::Hdd, Emulate::Ssd] {
        let mut seed = 0;
        conformance::run(&mut || {
            seed += 1;
            let (world, emulations) = (World::new(seed), Emulations::default());
            let rt = Rt::new(emulations.over(world.backend()), Order::Fifo, SLOTS);
            Box::new(Slow { world, rt, emulations, what })
        });
    }
}
