// Power losses during conversions: the target is absent or whole. A conversion started again,
// resumed or anew, ends in the same bytes.

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "convert/sources/tensor_source_open.h"
#include "convert/tensors/tensor_hash.h"
#include "engine/io/atomic_write.h"
#include "tests/durability/file_text.h"
#include "tests/durability/replay.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"

namespace tandem::tests {
namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;  // path below the target, content

// The files of a target directory, or a target file with its record (TARGET.convert.json).
Files Contents(const fs::path& target) {
  if (!fs::is_directory(target)) {
    const fs::path record = target.string() + ".convert.json";
    return {{"", Text(target)}, {"convert.json", fs::exists(record) ? Text(record) : ""}};
  }
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(target)) {
    const std::string name = entry.path().lexically_relative(target).string();
    files[name] = entry.is_directory() ? "a directory" : Text(entry.path());
  }
  return files;
}

// Files that differ from run to run: records with a time, and OCDBT's files, whose names are
// random.
bool IsOfItsOwn(const std::string& file) {
  return file == "convert.json" || file.ends_with("_CHECKPOINT_METADATA") ||
         file.ends_with("manifest.ocdbt") || file.find("/d/") != std::string::npos;
}

std::string FirstDifference(const Files& is, const Files& wanted) {
  for (const auto& [name, content] : wanted) {
    const auto found = is.find(name);
    if (found == is.end()) return "'" + name + "' is missing";
    if (found->second != content) return "'" + name + "' is not whole";
  }
  for (const auto& [name, content] : is) {
    if (!wanted.contains(name)) return "'" + name + "' is too much";
  }
  return "";
}

class ConversionLoss : public testing::Test {
 protected:
  ConversionLoss() {
    fs::create_directory(root());
    setenv("XDG_CACHE_HOME", (dir_.path() / "cache").c_str(), 1);
  }

  fs::path root() const { return dir_.path() / "root"; }

  std::string HashOfTensors(const fs::path& dir) const {
    return convert::HashOf(convert::HashTensors(*convert::OpenTensors(dir / target_).source));
  }

  // No verification and no certificate: a fault must show in the bytes.
  std::vector<std::string> Words(const fs::path& dir) const {
    std::vector<std::string> words = {ProgramPath(), "convert",     source_,
                                      dir / target_, "--no-verify", "--no-certificate"};
    words.insert(words.end(), flags_.begin(), flags_.end());
    return words;
  }

  std::vector<IoRecord> Record(const std::string& target, std::vector<std::string> flags) {
    target_ = target;
    flags_ = std::move(flags);
    auto records = RecordProgram(Words(root()), root(), dir_.path() / "log");
    records.emplace_back();  // a mark
    records.back().path = "it has ended";
    made_ = Contents(root() / target_);
    EXPECT_GT(made_.at(made_.contains("") ? "" : "convert.json").size(), 100U);
    return records;
  }

  std::string FaultOfTarget(const LostPower& lost) const {
    if (fs::exists(lost.disk / target_)) {
      return FirstDifference(Contents(lost.disk / target_), made_);
    }
    return lost.marks.empty() ? "" : "the target is absent";
  }

  std::string FaultOfGoingOn(const LostPower& lost) const {
    if (fs::exists(lost.disk / target_)) return FaultOfTarget(lost);
    const fs::path output = dir_.path() / "again.out";
    if (RunProgram(Words(lost.disk), {}, output) != 0) return "it does not go on: " + Text(output);
    if (fs::exists(lost.disk / (target_ + ".part"))) return "the work directory is left";
    if (HashOfTensors(lost.disk) != HashOfTensors(root())) return "other tensors";
    Files is = Contents(lost.disk / target_);
    Files wanted = made_;
    for (Files* files : {&is, &wanted}) {
      std::erase_if(*files, [](const auto& file) { return IsOfItsOwn(file.first); });
    }
    return FirstDifference(is, wanted);
  }

  void ExpectNoFaults(const std::vector<IoRecord>& records) {
    const auto faults = FaultsOfReplay(records, root(), NumberOfStates(300),
                                       [&](const auto& lost) { return FaultOfTarget(lost); });
    for (const std::string& fault : faults) ADD_FAILURE() << fault;
    const auto later = FaultsOfReplay(records, root(), std::min<size_t>(NumberOfStates(24), 400),
                                      [&](const auto& lost) { return FaultOfGoingOn(lost); });
    for (const std::string& fault : later) ADD_FAILURE() << fault;
  }

  static std::vector<IoRecord> Without(std::vector<IoRecord> records, const fs::path& synced) {
    const size_t before = records.size();
    std::erase_if(records, [&](const IoRecord& record) {
      return record.kind == IoKind::kSync && record.path == synced;
    });
    EXPECT_LT(records.size(), before) << synced << " is never synced";
    return records;
  }

  TemporaryDir dir_;
  fs::path source_ = LoadGolden("gemma2-tiny").dir;
  std::string target_;
  std::vector<std::string> flags_;
  Files made_;
};

TEST_F(ConversionLoss, LeavesAHuggingFaceDirectoryWholeOrAbsent) {
  ExpectNoFaults(Record("out", {"--to", "hf", "--dtype", "f32"}));
}

TEST_F(ConversionLoss, LeavesACheckpointOfShardsWholeOrAbsent) {
  ExpectNoFaults(Record("out", {"--to", "native", "--dtype", "f32"}));
}

TEST_F(ConversionLoss, LeavesAGgufFileWholeOrAbsent) {
  ExpectNoFaults(Record("out.gguf", {"--to", "gguf", "--dtype", "q8_0"}));
}

TEST_F(ConversionLoss, LeavesACheckpointOfMaxTextWholeOrAbsent) {
  ExpectNoFaults(Record("out", {"--to", "maxtext"}));
}

TEST_F(ConversionLoss, LeavesAMergedAdapterWholeOrAbsent) {
  const std::string base = source_.string();
  source_ /= "lora";
  ExpectNoFaults(Record("out.gguf", {"--to", "gguf", "--base", base}));
}

// Checks the replay itself. It must find unsynced contents, a broken journal and an unsynced name.
TEST_F(ConversionLoss, IsSeenWhereASyncIsLeftOut) {
  const auto records = Record("out", {"--to", "hf", "--dtype", "f32"});
  const auto faults_without = [&](const fs::path& synced, auto fault, size_t states) {
    return FaultsOfReplay(Without(records, synced), root(), states, fault);
  };
  const fs::path weights = root() / "out.part" / "target" / "model.safetensors";
  const auto of_target = [&](const LostPower& lost) { return FaultOfTarget(lost); };

  const auto contents = faults_without(weights, of_target, NumberOfStates(300));
  const auto name = faults_without(root(), of_target, NumberOfStates(300));
  const auto journal = faults_without(
      weights, [&](const LostPower& lost) { return FaultOfGoingOn(lost); }, NumberOfStates(60));

  ASSERT_FALSE(contents.empty());
  EXPECT_NE(contents[0].find("model.safetensors' is not whole"), std::string::npos) << contents[0];
  ASSERT_FALSE(name.empty());
  EXPECT_NE(name[0].find("the target is absent"), std::string::npos) << name[0];
  ASSERT_FALSE(journal.empty());
  EXPECT_TRUE(journal[0].ends_with(": other tensors") ||
              journal[0].ends_with("model.safetensors' is not whole"))
      << journal[0];
}

}  // namespace
}  // namespace tandem::tests
