#include "server/batches/batch_id.h"

#include <sys/random.h>

#include <array>

#include "engine/base/check.h"

namespace tandem::server {

std::string NewBatchId(const std::string& prefix) {
  std::array<unsigned char, 16> bytes{};
  TANDEM_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  std::string id = prefix;
  for (const unsigned char byte : bytes) {
    id += "0123456789abcdef"[byte >> 4];
    id += "0123456789abcdef"[byte & 15];
  }
  return id;
}

}  // namespace tandem::server
