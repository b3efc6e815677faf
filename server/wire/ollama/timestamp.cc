#include "server/wire/ollama/timestamp.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <ctime>

namespace tandem::server {

std::string OllamaTime(std::chrono::system_clock::time_point time) {
  const auto whole = std::chrono::floor<std::chrono::seconds>(time);
  const std::time_t seconds = std::chrono::system_clock::to_time_t(whole);
  const int64_t micros =
      std::chrono::duration_cast<std::chrono::microseconds>(time - whole).count();
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 24> date{};
  std::strftime(date.data(), date.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::array<char, 24> fraction{};  // of any integer, for the compiler
  std::snprintf(fraction.data(), fraction.size(), ".%06lldZ", static_cast<long long>(micros));
  return std::string(date.data()) + fraction.data();
}

}  // namespace tandem::server
