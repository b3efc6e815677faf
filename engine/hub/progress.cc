#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>

#include "engine/base/log.h"
#include "engine/hub/cache.h"
#include "engine/hub/pull.h"

namespace tandem::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLogInterval{10};

std::string HumanSeconds(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(std::min(seconds, 1e9)));
  std::array<char, 48> text{};
  if (whole < 120) {
    std::snprintf(text.data(), text.size(), "%lld s", static_cast<long long>(whole));
  } else if (whole < 7200) {
    std::snprintf(text.data(), text.size(), "%lld min", static_cast<long long>(whole / 60));
  } else {
    std::snprintf(text.data(), text.size(), "%lld h %lld min", static_cast<long long>(whole / 3600),
                  static_cast<long long>(whole / 60 % 60));
  }
  return text.data();
}

}  // namespace

std::string DescribeProgress(const PullStatus& status) {
  const double percent = status.bytes_total == 0 ? 100
                                                 : 100 * static_cast<double>(status.bytes_done) /
                                                       static_cast<double>(status.bytes_total);
  std::array<char, 16> head{};
  std::snprintf(head.data(), head.size(), "[%3d %%] ", static_cast<int>(percent));
  std::string text = head.data() + HumanBytes(status.bytes_done) + " of " +
                     HumanBytes(status.bytes_total) + ", " +
                     HumanBytes(static_cast<uint64_t>(status.bytes_per_s)) + "/s";
  if (status.seconds_left > 0) text += ", " + HumanSeconds(status.seconds_left) + " left";
  return text + " (" + status.name + ")";
}

PullReport ShowPullProgress() {
  struct Shown {
    size_t width = 0;
    Clock::duration next_log{};
  };
  const auto shown = std::make_shared<Shown>();
  if (isatty(STDERR_FILENO) == 1) {
    return [shown](const PullStatus& status) {
      if (status.files_total == 0) return;  // nothing to fetch, or the list is not known yet
      std::string line = DescribeProgress(status);
      const size_t width = line.size();
      if (width < shown->width) line.append(shown->width - width, ' ');
      shown->width = width;
      std::fprintf(stderr, "\r%s%s", line.c_str(), status.is_done ? "\n" : "");
      std::fflush(stderr);
    };
  }
  return [shown](const PullStatus& status) {
    if (status.files_total == 0) return;
    if (!status.is_done && status.elapsed < shown->next_log) return;
    shown->next_log = status.elapsed + kLogInterval;
    spdlog::info(
        "hub_pull model={} bytes={} total_bytes={} files={} total_files={} mib_per_s={:.1f} "
        "seconds_left={:.0f}",
        status.name, status.bytes_done, status.bytes_total, status.files_done, status.files_total,
        status.bytes_per_s / (1 << 20), status.seconds_left);
  };
}

}  // namespace tandem::engine
