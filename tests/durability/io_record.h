#pragma once

#include <cstdint>

namespace tandem::tests {

// One change of the file system in the recorder's log: this head, then the path, the second path
// and the data.
enum class IoKind : uint32_t {
  kOpen,      // path, node, flags: kCreates, kEmpties
  kWrite,     // node, offset, data
  kTruncate,  // path, node, offset: the new size
  kSync,      // path and node of a file or a directory
  kRename,    // path to second path, flags: kExchanges
  kRemove,    // path of a file or an empty directory
  kMakeDir,   // path, node
  kLink,      // a second name: path is the old one
  kSymlink,   // path is the link, second path its target
  kMap,       // path and node: mapped shared and writable; later stores are not recorded
  kMark,      // path: the text of a promise that now holds
};

inline constexpr uint32_t kCreates = 1;
inline constexpr uint32_t kEmpties = 2;
inline constexpr uint32_t kExchanges = 4;

struct IoHead {
  uint32_t magic = 0x10c0ffee;
  IoKind kind = IoKind::kMark;
  uint64_t node = 0;  // inode number
  int64_t offset = 0;
  uint32_t flags = 0;
  uint32_t path_bytes = 0;
  uint32_t second_bytes = 0;
  uint32_t data_bytes = 0;
};

// Environment of the recorder, both absolute paths: the log it appends to, and the directory whose
// changes it records.
inline constexpr const char* kLogVariable = "TANDEM_IO_LOG";
inline constexpr const char* kRootVariable = "TANDEM_IO_ROOT";

}  // namespace tandem::tests
