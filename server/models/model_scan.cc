#include "server/models/model_scan.h"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostConfigBytes = 1 << 20;
constexpr size_t kMostNameBytes = 120;

// A text member of a JSON file. Empty if the file or the member is missing or unusable.
std::string MemberOf(const nlohmann::ordered_json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end() || !found->is_string()) return "";
  return found->get<std::string>().substr(0, kMostNameBytes);
}

nlohmann::ordered_json ConfigOf(const fs::path& file) {
  nlohmann::ordered_json config = nlohmann::ordered_json::object();
  ErrorOf([&] {
    auto parsed =
        engine::ParseUntrustedJson(engine::ReadWholeFile(file, kMostConfigBytes), file.string());
    if (parsed.is_object()) config = std::move(parsed);
  });
  return config;
}

int64_t BytesOf(const fs::path& file) {
  std::error_code failed;
  const auto bytes = fs::file_size(file, failed);
  return failed ? 0 : static_cast<int64_t>(bytes);
}

class Scanner {
 public:
  Scanner(const fs::path& root, const ModelScanLimits& limits) : root_(root), limits_(limits) {}

  ModelScan Run() {
    folders_.emplace_back(root_, 0);
    while (!folders_.empty() && !IsFull()) {
      const auto [folder, depth] = std::move(folders_.front());
      folders_.pop_front();
      Look(folder, depth);
    }
    if (!folders_.empty()) scan_.is_complete = false;
    std::sort(scan_.models.begin(), scan_.models.end(),
              [](const FoundModel& a, const FoundModel& b) { return a.path < b.path; });
    return std::move(scan_);
  }

 private:
  struct Contents {
    std::vector<fs::path> folders, gguf;
    int64_t weight_bytes = 0;  // safetensors
    bool has_config = false, has_weights = false, is_adapter = false;
  };

  bool IsFull() {
    if (n_entries_ < limits_.entries && scan_.models.size() < limits_.models) return false;
    scan_.is_complete = false;
    return true;
  }

  Contents Read(const fs::path& folder) {
    Contents contents;
    std::error_code failed;
    for (fs::directory_iterator at(folder, failed); !failed && at != fs::directory_iterator();
         at.increment(failed)) {
      if (n_entries_ >= limits_.entries) {
        scan_.is_complete = false;
        break;
      }
      ++n_entries_;
      const fs::path& path = at->path();
      const std::string name = path.filename().string();
      if (name.starts_with('.')) continue;
      std::error_code unreadable;
      if (at->is_directory(unreadable)) {
        if (!at->is_symlink(unreadable)) contents.folders.push_back(path);
        continue;
      }
      if (!at->is_regular_file(unreadable)) continue;
      contents.has_config = contents.has_config || name == "config.json";
      contents.is_adapter = contents.is_adapter || name == "adapter_config.json";
      if (path.extension() == ".safetensors") {
        contents.has_weights = true;
        contents.weight_bytes += BytesOf(path);
      }
      if (path.extension() == ".gguf" && !at->is_symlink(unreadable)) contents.gguf.push_back(path);
    }
    std::sort(contents.folders.begin(), contents.folders.end());
    return contents;
  }

  void Look(const fs::path& folder, int depth) {
    const Contents contents = Read(folder);
    for (const fs::path& file : contents.gguf) {
      Add({.path = RelativeOf(file), .kind = FoundModel::Kind::kGguf, .bytes = BytesOf(file)});
    }
    const bool is_model =
        folder != root_ && contents.has_weights && (contents.has_config || contents.is_adapter);
    if (is_model) {
      FoundModel model{.path = RelativeOf(folder), .bytes = contents.weight_bytes};
      if (contents.is_adapter) {
        model.kind = FoundModel::Kind::kAdapter;
        model.base = MemberOf(ConfigOf(folder / "adapter_config.json"), "base_model_name_or_path");
      } else {
        const nlohmann::ordered_json config = ConfigOf(folder / "config.json");
        model.family = MemberOf(config, "model_type");
        model.dtype = MemberOf(config, "torch_dtype");
      }
      return Add(std::move(model));
    }
    if (depth == limits_.depth) {
      if (!contents.folders.empty()) scan_.is_complete = false;
      return;
    }
    for (const fs::path& inner : contents.folders) folders_.emplace_back(inner, depth + 1);
  }

  void Add(FoundModel model) {
    if (scan_.models.size() < limits_.models) {
      scan_.models.push_back(std::move(model));
    } else {
      scan_.is_complete = false;
    }
  }

  std::string RelativeOf(const fs::path& path) const {
    return path.lexically_relative(root_).generic_string();
  }

  const fs::path root_;
  const ModelScanLimits limits_;
  std::deque<std::pair<fs::path, int>> folders_;  // to look at, with their depth
  size_t n_entries_ = 0;
  ModelScan scan_;
};

}  // namespace

ModelScan FindModelsBelow(const fs::path& root, const ModelScanLimits& limits) {
  return Scanner(root, limits).Run();
}

}  // namespace tandem::server
