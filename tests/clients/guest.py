"""A real Linux guest whose disk is the volume: mkfs, fsync-heavy load, power cuts of the guest and
of the server, boot again, fsck clean, all that was fsynced is there."""

from harness.case import limit
from harness.guest import Guest, initramfs, need_guest

# Every file of the load is new; `@ok NAME SUM` is said only after the file and the log are synced.
# (ext4 makes the name of a new file durable with the file's fsync.) The programs of e2fsprogs are
# named by path, since busybox has smaller ones of its own.
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for m in /modules/*.ko; do [ -e "$m" ] && insmod "$m" 2>/dev/null; done
job=$(sed 's/.*job=\\([a-z]*\\).*/\\1/' /proc/cmdline)
for i in 1 2 3 4 5 6 7 8 9 10; do [ -b /dev/vda ] && break; sleep 0.2; done
end() { echo "@end $1"; sync; poweroff -f; }
[ -b /dev/vda ] || end no-disk
if [ $job = make ]; then
    /sbin/mke2fs -q -t ext4 -F /dev/vda || end mkfs-failed
else
    /sbin/e2fsck -p /dev/vda >/tmp.out 2>&1
    s=$?
    cat /tmp.out
    echo "@recovered $s"
    /sbin/e2fsck -f -n /dev/vda >/tmp.out 2>&1
    s=$?
    [ $s -eq 0 ] || cat /tmp.out
    echo "@fsck $s"
fi
mount -t ext4 /dev/vda /mnt || end mount-failed
mkdir -p /mnt/d
touch /mnt/log
echo "@log $(wc -l </mnt/log)"
for f in /mnt/d/*; do [ -e $f ] && echo "@file ${f##*/} $(md5sum <$f | cut -c1-32)"; done
echo "@files-end"
[ $job = look ] && { umount /mnt; /sbin/e2fsck -f -n /dev/vda >/tmp.out 2>&1; \
echo "@fsck $?"; end fine; }
n=$(date +%s)000
while true; do
    n=$((n + 1))
    f=/mnt/d/f$n
    dd if=/dev/urandom of=$f bs=$((n % 7 * 3000 + 500)) count=$((n % 5 + 1)) conv=fsync \
2>/dev/null || end write-failed
    s=$(md5sum <$f | cut -c1-32)
    echo $n | dd of=/mnt/log oflag=append conv=notrunc,fsync 2>/dev/null || end log-failed
    echo "@ok f$n $s"
done
"""


class Machine:
    """The guest over its boots, and what it has said is safe."""

    def __init__(self, t, server):
        self.t = t
        self.server = server
        self.image, root = need_guest(t)
        self.ramdisk = initramfs(t, root, INIT)
        self.synced = {}

    def boot(self, job):
        return Guest(self.t, self.image, self.ramdisk, self.server.uri(), job)

    def look(self, guest, first=False):
        """Reads what the guest finds after its boot, and compares."""
        found, log = {}, 0
        for words in guest.lines(60):
            if words[0] == "recovered":
                assert words[1] in ("0", "1"), f"e2fsck -p could not recover: {guest.text[-30:]}"
            elif words[0] == "fsck":
                assert words[1] == "0", f"the file system is not clean: {guest.text[-30:]}"
            elif words[0] == "log":
                log = int(words[1])
            elif words[0] == "file":
                found[words[1]] = words[2]
            elif words[0] == "files-end":
                break
            else:
                raise AssertionError(f"the guest said {words}: {guest.text[-30:]}")
        lost = {name: sum_ for name, sum_ in self.synced.items() if found.get(name) != sum_}
        assert not lost, (
            f"{len(lost)} of {len(self.synced)} synced files are lost or wrong: {sorted(lost)[:5]}"
        )
        assert log >= len(self.synced), f"the log has {log} lines, {len(self.synced)} were synced"
        print(f"{len(self.synced)} synced files are there, {len(found)} in all")
        assert first or self.synced

    def work(self, guest, count):
        """Lets the guest sync this many files more."""
        for words in guest.lines(90):
            assert words[0] == "ok", f"the guest said {words}: {guest.text[-30:]}"
            self.synced[words[1]] = words[2]
            count -= 1
            if count == 0:
                return
        raise AssertionError(f"the guest ended: {guest.text[-30:]}")

    def say_last_words(self, guest):
        """What the guest still said before it was killed counts too."""
        for words in guest.lines(10):
            if words[0] == "ok":
                self.synced[words[1]] = words[2]


@limit(280)
def test_power_cuts(t):
    """Guest killed, then server killed under a running guest, then both at once."""
    need_guest(t)
    server = t.up(volume_size="512M", size="2G")
    machine = Machine(t, server)

    guest = machine.boot("make")
    machine.look(guest, first=True)
    machine.work(guest, 40)
    guest.kill()
    machine.say_last_words(guest)

    guest = machine.boot("load")
    machine.look(guest)
    machine.work(guest, 40)
    server.kill()
    guest.kill()
    machine.say_last_words(guest)
    server.check()
    server.start()

    guest = machine.boot("load")
    machine.look(guest)
    machine.work(guest, 40)
    guest.kill()
    server.kill()
    machine.say_last_words(guest)
    server.start()

    guest = machine.boot("look")
    machine.look(guest)
    assert [words for words in guest.lines(60)] == [["fsck", "0"], ["end", "fine"]], guest.text[
        -30:
    ]
    assert guest.process.wait(20) == 0
    server.stop()
    server.check()
