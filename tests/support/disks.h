// Disks for tests that run as root: an ext4 image behind a loop device, and a block device that
// loses what is written to it. They are made in a mount namespace of this process, so that nothing
// is left however it ends.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

namespace artesian::test_support {

/// True if the shell ran the command with success; its output is dropped.
inline bool run_quietly(const std::string& command) {
  return std::system(("PATH=$PATH:/usr/sbin:/sbin; (" + command + ") >/dev/null 2>&1").c_str()) ==
         0;
}

/// Makes later mounts of this thread, and of the processes it starts, invisible to all others.
inline bool enter_own_mounts() {
  static const bool entered =
      unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return entered;
}

/// A mounted file system, unmounted at the end.
class Mount {
 public:
  explicit Mount(std::string path) : path_(std::move(path)) {}
  ~Mount() { umount2(path_.c_str(), MNT_DETACH); }
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// An empty ext4 of `bytes` in a file below `folder`.
class MountedImage {
 public:
  /// Null where this process must not mount.
  static std::unique_ptr<MountedImage> make(const std::string& folder, std::uint64_t bytes) {
    const std::string image = folder + "/image";
    const std::string point = folder + "/mounted";
    if (!enter_own_mounts()) return nullptr;
    std::filesystem::create_directory(point);
    if (!run_quietly("truncate -s " + std::to_string(bytes) + " " + image + " && mkfs.ext4 -q " +
                     image + " && mount -o loop " + image + " " + point)) {
      return nullptr;
    }
    return std::unique_ptr<MountedImage>(new MountedImage(point));
  }
  const std::string& path() const { return mount_.path(); }

 private:
  explicit MountedImage(std::string point) : mount_(std::move(point)) {}
  Mount mount_;
};

/// A block device of 64 MiB above 1 MiB of memory: writes into the page cache succeed, and are lost
/// when the kernel writes them back.
class LosingDevice {
 public:
  /// Null where this process must not make one.
  static std::unique_ptr<LosingDevice> make(const std::string& folder) {
    const std::string point = folder + "/memory";
    if (!enter_own_mounts()) return nullptr;
    std::filesystem::create_directory(point);
    if (mount("tmpfs", point.c_str(), "tmpfs", 0, "size=1M") != 0) return nullptr;
    auto device = std::unique_ptr<LosingDevice>(new LosingDevice(point));
    const std::string name = folder + "/device";
    if (!run_quietly("truncate -s 64M " + point + "/backing && losetup --find --show " + point +
                     "/backing >" + name)) {
      return nullptr;
    }
    char path[64] = {};
    std::FILE* file = std::fopen(name.c_str(), "r");
    if (file == nullptr || std::fscanf(file, "%63s", path) != 1) std::abort();
    std::fclose(file);
    device->path_ = path;
    return device;
  }
  ~LosingDevice() {
    if (!path_.empty()) run_quietly("losetup --detach " + path_);
  }
  LosingDevice(const LosingDevice&) = delete;
  LosingDevice& operator=(const LosingDevice&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit LosingDevice(std::string point) : mount_(std::move(point)) {}
  Mount mount_;
  std::string path_;
};

}  // namespace artesian::test_support
