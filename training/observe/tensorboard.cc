#include <cmath>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>

#include "engine/base/unix_time.h"
#include "engine/io/atomic_write.h"
#include "training/observe/event_file.h"
#include "training/observe/metrics.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = size_t{4} << 30;
constexpr const char* kPrefix = "events.out.tfevents.";

bool IsKept(const TensorBoardEvent& event, int64_t first_step) {
  if (event.scalars.empty()) return false;
  const std::string& tag = event.scalars[0].first;
  const bool between = tag.starts_with("eval/") || tag.starts_with("checkpoint/");
  return !IsRedone(between ? MetricsRow::Kind::kBetweenSteps : MetricsRow::Kind::kStep, event.step,
                   first_step);
}

class TensorBoard : public MetricsSink {
 public:
  // Readers show every event file of a directory. A resumed run therefore rewrites the valid events
  // of all older files into one.
  TensorBoard(const fs::path& dir, int64_t first_step) {
    fs::create_directories(dir);
    const double now = UnixNowExact();
    std::string contents = FrameRecord(EncodeEvent({now, 0, "brain.Event:2", {}}));
    std::set<fs::path> old;  // in the order of their creation
    for (const auto& entry : fs::directory_iterator(dir)) {
      if (entry.path().filename().string().starts_with(kPrefix)) old.insert(entry.path());
    }
    for (const fs::path& path : old) {
      const std::string text = engine::ReadWholeFile(path, kMaxFileBytes);
      std::string_view rest = text;
      std::string_view payload;
      TensorBoardEvent event;
      while (TakeRecord(&rest, &payload)) {
        if (!DecodeEvent(payload, &event) || !IsKept(event, first_step)) continue;
        contents += FrameRecord(payload);
      }
    }
    char name[64];
    std::snprintf(name, sizeof name, "%s%010lld.tandem", kPrefix, static_cast<long long>(now));
    engine::WriteFileAtomically(dir / name, contents);
    for (const fs::path& path : old) {
      if (path != dir / name) fs::remove(path);
    }
    file_.open(dir / name, std::ios::app | std::ios::binary);
  }

  void Write(const MetricsRow& row) override {
    TensorBoardEvent event{row.unix_seconds, row.step, "", {}};
    for (const Scalar& scalar : row.scalars) {
      if (!std::isfinite(scalar.value)) continue;
      event.scalars.emplace_back(scalar.name, static_cast<float>(scalar.value));
    }
    file_.clear();
    file_ << FrameRecord(EncodeEvent(event)) << std::flush;
  }

 private:
  std::ofstream file_;
};

}  // namespace

std::unique_ptr<MetricsSink> MakeTensorBoard(const fs::path& dir, int64_t first_step) {
  return std::make_unique<TensorBoard>(dir, first_step);
}

}  // namespace tandem::training
