#!/bin/sh
# The first process of a guest: it mounts the host's files, which it may only read, and its own disk over one
# directory of them, lets the host in on its ports, and does what it is told over the second serial line.
# KEY=VALUE of the kernel's command line are variables here.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
while read -r module; do insmod "/modules/$module"; done < /modules/order
if [ -n "$guest_clock" ]; then date -u -s "@$guest_clock"; fi

mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host
mount -t ext4 /dev/vda "/host$guest_disk"
mount -t proc proc /host/proc
mount -t sysfs sys /host/sys
mount --bind /dev /host/dev
mount -t tmpfs run /host/run

ifconfig lo up
ifconfig eth0 10.0.2.15 up
route add default gw 10.0.2.2
number=18000
for port in $(echo "$guest_ports" | tr , ' '); do
  # It ends where a peer goes away before it was let in.
  while true; do nc -ll -p "$number" -e nc 127.0.0.1 "$port"; done &
  number=$((number + 1))
done

# Held open from here on: what comes while nobody has it open is lost.
exec 3<> /dev/ttyS1
stty raw -echo <&3
echo "the guest listens"
while read -r line; do eval "$line"; done <&3 >&3 2>&3
