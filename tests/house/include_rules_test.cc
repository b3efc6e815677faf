#include "tests/house/include_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/paths.h"
#include "tests/support/sources.h"

// Reads the sources and fails on any include that points up or sideways, and on any third-party
// header outside its allowed folders.

namespace tandem::tests {
namespace {

namespace fs = std::filesystem;

bool IsInside(std::string_view path, std::string_view folder) {
  return folder.empty() || path == folder ||
         (path.starts_with(folder) && path.size() > folder.size() && path[folder.size()] == '/');
}

const FolderRule* RuleOf(const std::string& file) {
  const std::string folder = file.starts_with("tests/") ? "tests" : FolderOf(file);
  const auto found = std::find_if(kFolderRules.begin(), kFolderRules.end(),
                                  [&](const FolderRule& rule) { return rule.folder == folder; });
  return found == kFolderRules.end() ? nullptr : &*found;
}

std::optional<std::string> FaultOfOwnHeader(const std::string& file, const std::string& included) {
  const FolderRule* rule = RuleOf(file);
  if (rule == nullptr) return FolderOf(file) + " has no row";
  const std::string folder = FolderOf(included);
  if (folder == rule->folder) return std::nullopt;
  for (const std::string_view allowed : rule->may_include) {
    if (allowed == "*" || allowed == folder || allowed == included) return std::nullopt;
  }
  return std::string(rule->folder) + " may not include " + included;
}

std::optional<std::string> FaultOfForeignHeader(const std::string& file,
                                                const std::string& included) {
  if (included.find_first_of("./") == std::string::npos) return std::nullopt;  // <vector>
  for (const DoorRule& door : kDoorRules) {
    if (!included.starts_with(door.prefix)) continue;
    if (door.only_in_sources && IsHeader(file) && !IsInside(file, "tests")) {
      return "<" + included + "> belongs in a .cc file, not in a header";
    }
    const std::string stem = file.substr(0, file.rfind('.'));
    for (const std::string_view room : door.rooms) {
      if (room == "*" || IsInside(file, room) || stem == room) return std::nullopt;
    }
    return "<" + included + "> has its door elsewhere";
  }
  for (const std::string_view system : kSystemHeaders) {
    if (included.starts_with(system)) return std::nullopt;
  }
  return "<" + included + "> is a third-party header without a door";
}

std::optional<std::string> Fault(const std::string& file, const Include& include) {
  return include.quoted ? FaultOfOwnHeader(file, include.path)
                        : FaultOfForeignHeader(file, include.path);
}

TEST(IncludeRules, EveryIncludeOfTheHouseObeysTheTable) {
  const fs::path root = tests::SourceDir();
  const std::vector<std::string> sources = Sources();
  ASSERT_GT(sources.size(), 50u) << "the sources were not found";

  for (const std::string& file : sources) {
    for (const Include& include : IncludesOf(root / file)) {
      const auto fault = Fault(file, include);
      EXPECT_FALSE(fault.has_value()) << file << ": " << *fault;
      if (include.quoted) {
        EXPECT_TRUE(fs::exists(root / include.path))
            << file << ": \"" << include.path << "\" is not rooted at the repository";
      }
    }
  }
}

TEST(IncludeRules, EveryHeaderBeginsWithPragmaOnce) {
  for (const std::string& file : Sources()) {
    if (!IsHeader(file)) continue;
    std::ifstream stream(tests::SourceDir() / file);
    std::string first;
    std::getline(stream, first);
    EXPECT_EQ(first, "#pragma once") << file;
  }
}

// Checks the table itself: the design depends on these forbidden edges.
TEST(IncludeRules, TheTableForbidsWhatItShould) {
  const struct {
    const char* file;
    Include include;
  } forbidden[] = {
      {"engine/base/ids.h", {"engine/tensor/dtype.h", true}},
      {"engine/kernels/dispatch.cc", {"engine/ops/rows.h", true}},
      {"engine/kernels/avx2/table.cc", {"engine/ops/rows.h", true}},
      {"engine/kv/kv_cache.cc", {"engine/ops/attention.h", true}},
      {"engine/sched/scheduler.cc", {"engine/tensor/tensor.h", true}},
      {"engine/sched/scheduler.cc", {"engine/model/model.h", true}},
      {"engine/sched/scheduler.cc", {"engine/sampling/sampler.h", true}},
      {"engine/model/families/dense/llama.cc", {"engine/sched/scheduler.h", true}},
      {"engine/model/model.cc", {"engine/tokenizer/tokenizer.h", true}},
      {"engine/loop/step.cc", {"server/http/router.h", true}},
      {"training/step/trainer.cc", {"engine/sched/scheduler.h", true}},
      {"training/step/trainer.cc", {"engine/engine.h", true}},
      {"training/step/trainer.cc", {"convert/run.h", true}},
      {"convert/run.cc", {"training/spec/spec.h", true}},
      {"server/wire/chat_request.cc", {"server/http/router.h", true}},
      {"server/handlers/health.cc", {"engine/model/model.h", true}},
      {"server/jobs/job_store.cc", {"server/http/router.h", true}},
      {"server/handlers/models.cc", {"config/app_config.h", true}},
      {"engine/loop/step.cc", {"boost/asio.hpp", false}},
      {"server/handlers/health.cc", {"boost/beast.hpp", false}},
      {"engine/io/json.h", {"nlohmann/json.hpp", false}},
      {"engine/ops/rows.cc", {"immintrin.h", false}},
      {"engine/model/model.cc", {"spdlog/spdlog.h", false}},
      {"server/app/app.cc", {"sqlite3.h", false}},
      {"engine/io/json.cc", {"rapidjson/document.h", false}},
      {"somewhere/new.cc", {"engine/base/error.h", true}},
  };
  for (const auto& [file, include] : forbidden) {
    EXPECT_TRUE(Fault(file, include).has_value()) << file << " includes " << include.path;
  }
}

TEST(IncludeRules, TheTableAllowsWhatItShould) {
  const struct {
    const char* file;
    Include include;
  } allowed[] = {
      {"engine/model/families/dense/llama.cc", {"engine/model/families/family.h", true}},
      {"engine/kernels/avx2/table.cc", {"engine/kernels/kernels.h", true}},
      {"training/ops/linear.cc", {"engine/ops/matmul.h", true}},
      {"training/run/run.cc", {"engine/model/model.h", true}},
      {"server/models/model_host.cc", {"engine/engine.h", true}},
      {"server/cli/train.cc", {"training/run/run.h", true}},
      {"server/app/app.cc", {"boost/asio.hpp", false}},
      {"engine/io/json.h", {"nlohmann/json_fwd.hpp", false}},
      {"engine/io/json.cc", {"nlohmann/json.hpp", false}},
      {"engine/base/log.h", {"spdlog/spdlog.h", false}},
      {"engine/base/error.h", {"string", false}},
      {"engine/io/mapped_file.cc", {"sys/mman.h", false}},
      {"training/spec/spec.cc", {"yaml-cpp/yaml.h", false}},
  };
  for (const auto& [file, include] : allowed) {
    const auto fault = Fault(file, include);
    EXPECT_FALSE(fault.has_value()) << file << ": " << *fault;
  }
}

}  // namespace
}  // namespace tandem::tests
