#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/durability/io_record.h"

namespace tandem::tests {

struct IoRecord {
  IoKind kind = IoKind::kMark;
  uint64_t node = 0;
  int64_t offset = 0;
  uint32_t flags = 0;
  std::string path;
  std::string second;
  std::string data;
};

// Reads the recorder's log, without a truncated last record.
std::vector<IoRecord> ReadIoLog(const std::filesystem::path& log);

// Which unsynced changes a power loss destroys.
enum class Loss {
  kNothing,   // everything reached the disk
  kUnsynced,  // only what was synced: contents by fsync of the file, names by fsync of the
              // directory
  kContents,  // names did, contents that were not synced did not
  kNames,     // contents did, names that were not synced did not
  kSome,      // anything between: each name, and each written piece, did or did not
};

// The contents of a disk after a power loss: path below the root -> content. Directory paths end
// with a slash.
using DiskState = std::map<std::string, std::string>;

// A directory tree rebuilt from records: the view of programs, and the part that survives a loss.
// Stricter than today's file systems: fsync of a file does not make its name durable.
class DiskModel {
 public:
  // `root` is empty, or its contents do not matter.
  explicit DiskModel(std::filesystem::path root);

  void Apply(const IoRecord& record);
  // Equal states have equal digests; cheaper than comparing states.
  size_t Digest(Loss loss) const;
  // `random` is used by kSome only.
  DiskState After(Loss loss, std::mt19937& random) const;

 private:
  struct Node {
    bool is_dir = false;
    bool is_link = false;
    std::string content;  // of a link: its target
    std::string synced;
    uint64_t version = 0;  // of `content`
    uint64_t synced_version = 0;
    // Pieces since the last sync, in order. A negative offset means: the size becomes -1 - offset.
    std::vector<std::pair<int64_t, std::string>> unsynced;
    std::map<std::string, std::shared_ptr<Node>> entries;
    std::map<std::string, std::shared_ptr<Node>> synced_entries;
  };
  using NodePtr = std::shared_ptr<Node>;

  static void Write(std::string* content, int64_t offset, const std::string& data);
  static std::string ContentAfter(const Node& node, Loss loss, std::mt19937& random);
  static std::map<std::string, NodePtr> EntriesAfter(const Node& dir, Loss loss,
                                                     std::mt19937& random);
  static void AddToDigest(const Node& dir, Loss loss, size_t* digest);
  static void Collect(const Node& dir, const std::string& prefix, Loss loss, std::mt19937& random,
                      DiskState* state);

  std::string Relative(const std::string& path) const;
  Node& ParentOf(const std::string& path, std::string* name);  // throws for an unknown directory
  void Change(Node& file, int64_t offset, const std::string& data);
  void Open(const IoRecord& record);
  void Rename(const IoRecord& record);

  std::filesystem::path root_;
  NodePtr top_ = std::make_shared<Node>();
  std::map<uint64_t, NodePtr> by_number_;
  uint64_t n_changes_ = 0;
};

// Makes `dir` hold exactly `state`.
void PutOnDisk(const DiskState& state, const std::filesystem::path& dir);

}  // namespace tandem::tests
