#include <cmath>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/base/unix_time.h"
#include "engine/io/atomic_write.h"
#include "engine/io/sha256.h"
#include "training/observe/metrics.h"
#include "training/observe/wandb_file.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr size_t kMaxWandbBytes = size_t{4} << 30;
constexpr const char* kWandbFolder = "offline-run-";
constexpr size_t kIdLength = 8;

// An id that no other run has: of the time and the directory.
std::string NewRunId(const fs::path& dir, double now) {
  const std::string text = fs::absolute(dir).string() + " " + std::to_string(now);
  return engine::ToHex(engine::Sha256Of(std::as_bytes(std::span(text)))).substr(0, kIdLength);
}

std::string FolderName(const std::string& id, double now) {
  const auto seconds = static_cast<std::time_t>(now);
  std::tm utc = {};
  gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d_%H%M%S", &utc);
  return kWandbFolder + std::string(text) + "-" + id;
}

// The folder of an earlier start of the run.
std::optional<fs::path> FindFolder(const fs::path& dir) {
  std::optional<fs::path> found;
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(dir, absent)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kWandbFolder) || name.size() < kIdLength) continue;
    if (!found || name > found->filename().string()) found = entry.path();
  }
  return found;
}

std::string IdOf(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return name.substr(name.size() - kIdLength);
}

bool IsKeptHistory(const WandbHistory& history, int64_t first_step) {
  for (const auto& [key, json] : history.items) {
    if (key.starts_with("_")) continue;
    const bool between = key.starts_with("eval/") || key.starts_with("checkpoint/");
    return !IsRedone(between ? MetricsRow::Kind::kBetweenSteps : MetricsRow::Kind::kStep,
                     history.step, first_step);
  }
  return false;
}

class Wandb : public MetricsSink {
 public:
  // `wandb sync` uploads a folder as one run. A resumed run therefore keeps the folder, and
  // rewrites the file with the rows that it will not write again.
  Wandb(const fs::path& dir, int64_t first_step, const WandbDescription& description) {
    const double now = UnixNowExact();
    const fs::path parent = dir / "wandb";
    const fs::path folder =
        FindFolder(parent).value_or(parent / FolderName(NewRunId(dir, now), now));
    fs::create_directories(folder);
    path_ = folder / ("run-" + IdOf(folder) + ".wandb");
    std::string contents = WandbHeader();
    const auto add = [&](const std::string& record) {
      contents += FrameWandbRecord(record, contents.size());
    };
    WandbRun run{IdOf(folder), description.project, description.name, description.config, now};
    add(EncodeWandbRun(run, number_++));
    for (WandbHistory& history : OldHistory()) {
      if (!IsKeptHistory(history, first_step)) continue;
      Remember(history);
      add(EncodeWandbHistory(history, number_++));
    }
    engine::WriteFileAtomically(path_, contents);
    bytes_ = contents.size();
    started_unix_ = now;
    file_.open(path_, std::ios::app | std::ios::binary);
  }

  ~Wandb() override {
    Flush();
    Append(EncodeWandbExit(std::uncaught_exceptions() > 0 ? 1 : 0, number_++));
  }

  void Write(const MetricsRow& row) override {
    WandbHistory history;
    history.step = row.step;
    for (const Scalar& scalar : row.scalars) {
      if (std::isfinite(scalar.value)) {
        history.items.emplace_back(scalar.name, ordered_json(scalar.value).dump());
      }
    }
    history.items.emplace_back("_step", std::to_string(row.step));
    history.items.emplace_back("_timestamp", ordered_json(row.unix_seconds).dump());
    history.items.emplace_back("_runtime", ordered_json(row.unix_seconds - started_unix_).dump());
    Remember(history);
    Append(EncodeWandbHistory(history, number_++));
  }

  void Flush() override {
    const WandbItems last(last_.begin(), last_.end());
    Append(EncodeWandbSummary(last, number_++));
  }

 private:
  std::vector<WandbHistory> OldHistory() const {
    std::vector<WandbHistory> rows;
    if (!fs::exists(path_)) return rows;
    const std::string text = engine::ReadWholeFile(path_, kMaxWandbBytes);
    const std::string header = WandbHeader();
    if (!text.starts_with(header)) return rows;
    size_t at = header.size();
    std::string record;
    WandbHistory history;
    while (TakeWandbRecord(text, &at, &record)) {
      if (DecodeWandbHistory(record, &history)) rows.push_back(history);
    }
    return rows;
  }

  void Remember(const WandbHistory& history) {
    for (const auto& [key, json] : history.items) last_[key] = json;
  }

  void Append(const std::string& record) {
    const std::string bytes = FrameWandbRecord(record, bytes_);
    file_.clear();
    file_ << bytes << std::flush;
    if (file_) bytes_ += bytes.size();
  }

  fs::path path_;
  std::ofstream file_;
  size_t bytes_ = 0;    // of the file
  int64_t number_ = 1;  // of the next record
  double started_unix_ = 0;
  std::map<std::string, std::string> last_;  // the last value of each name
};

}  // namespace

std::unique_ptr<MetricsSink> MakeWandb(const fs::path& dir, int64_t first_step,
                                       const WandbDescription& description) {
  return std::make_unique<Wandb>(dir, first_step, description);
}

}  // namespace tandem::training
