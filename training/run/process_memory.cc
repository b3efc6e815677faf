#include "training/run/process_memory.h"

#include <fstream>
#include <sstream>

namespace tandem::training {

int64_t StatusBytes(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(field + ":")) continue;
    std::istringstream words(line.substr(field.size() + 1));
    int64_t kib = 0;
    words >> kib;
    return kib * 1024;
  }
  return 0;
}

}  // namespace tandem::training
