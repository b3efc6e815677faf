#include "bench/measure/paired.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>

#include "engine/base/error.h"

namespace tandem::bench {

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double ThreadCpuSeconds(const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double from = now();
  work();
  return now() - from;
}

double RunPeer(const std::string& command) {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string output;
  std::array<char, 4096> buffer;
  while (pipe != nullptr) {
    const size_t got = fread(buffer.data(), 1, buffer.size(), pipe.get());
    if (got == 0) break;
    output.append(buffer.data(), got);
  }
  const int status = pipe != nullptr ? pclose(pipe.release()) : -1;
  const size_t at = output.rfind("tokens/s");
  if (status != 0 || at == std::string::npos) {
    throw Error(ErrorCode::kFailedPrecondition,
                "the peer's command ended with status " + std::to_string(status) +
                    (at == std::string::npos ? " without printing 'N tokens/s'" : ""));
  }
  // Accepts "tokens/s best 123.4" and "123.4 tokens/s".
  size_t end = at;
  while (end > 0 && output[end - 1] == ' ') --end;
  size_t begin = end;
  while (begin > 0 && (std::isdigit(output[begin - 1]) != 0 || output[begin - 1] == '.')) --begin;
  const double value = begin < end ? std::atof(output.substr(begin, end - begin).c_str()) : 0;
  if (value <= 0) {
    throw Error(ErrorCode::kFailedPrecondition, "the peer must print a number before 'tokens/s'");
  }
  return value;
}

}  // namespace tandem::bench
