// Killed conversions to GGUF and MaxText. The restarted ones end with the bytes and report of an
// undisturbed one, and repeat no finished work.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <bit>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "convert/formats/gguf/gguf.h"
#include "convert/work/journal.h"
#include "convert/work/work_dir.h"
#include "engine/formats/gguf/gguf.h"
#include "engine/io/json.h"
#include "engine/io/mapped_file.h"
#include "engine/model/families/family.h"
#include "engine/tensor/bfloat16.h"
#include "engine/tensor/tensor.h"
#include "tests/convert/resume/resume_fixture.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::DType;
using Files = std::map<std::string, std::string>;

constexpr const char* kConfig = R"({"model_type": "gemma2", "vocab_size": 1024, "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 128, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
    "query_pre_attn_scalar": 32, "sliding_window": 8, "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 6.0})";

struct Variant {
  std::string name;
  std::string format;
  std::string dtype;
  DType source = DType::kF32;
  std::string layout = {};
  bool ocdbt = true;
  int zarr = 3;
};

// In f32 the model has corrections in `exact/`; in bf16 some parameters stay in f32.
std::vector<Variant> Variants() {
  return {
      {.name = "q8_0", .format = "gguf", .dtype = "q8_0"},
      {.name = "as it is", .format = "gguf", .dtype = "", .source = DType::kBF16},
      {.name = "OCDBT 3", .format = "maxtext", .dtype = "", .layout = "unscanned"},
      {.name = "OCDBT 2 scanned",
       .format = "maxtext",
       .dtype = "",
       .source = DType::kBF16,
       .zarr = 2},
      {.name = "files 3 scanned", .format = "maxtext", .dtype = "", .ocdbt = false},
      {.name = "files 2",
       .format = "maxtext",
       .dtype = "",
       .source = DType::kBF16,
       .layout = "unscanned",
       .ocdbt = false,
       .zarr = 2},
  };
}

class ResumeFormatsTest : public KilledConversionTest {
 protected:
  ResumeFormatsTest() {
    for (const DType dtype : {DType::kF32, DType::kBF16}) WriteModel(dtype);
  }

  fs::path ModelOf(DType dtype) const { return dir_.path() / std::string(DTypeName(dtype)); }

  void WriteModel(DType dtype, unsigned seed = 1) {
    const fs::path dir = ModelOf(dtype);
    fs::create_directories(dir);
    std::ofstream(dir / "config.json") << kConfig;
    const auto json = engine::ParseUntrustedJson(kConfig, "config.json");
    const engine::FamilySpec& family = engine::FindFamily(json, "config.json");
    std::mt19937 random(seed);
    std::vector<std::vector<std::byte>> data;
    std::vector<engine::NamedTensor> tensors;
    for (const auto& spec : family.list_weights(family.parse_config(json, "config.json"))) {
      auto& bytes = data.emplace_back();
      for (int64_t i = 0; i < engine::ElementCount(spec.source_shape); ++i) {
        const float value = static_cast<float>(random()) * 1e-10f;
        const auto half = engine::FloatToBf16(value);
        const auto* raw = dtype == DType::kF32 ? reinterpret_cast<const std::byte*>(&value)
                                               : reinterpret_cast<const std::byte*>(&half);
        bytes.insert(bytes.end(), raw, raw + engine::DTypeBytes(dtype));
      }
      tensors.push_back({spec.name, {bytes.data(), dtype, spec.source_shape}});
    }
    engine::WriteSafetensors(dir / "model.safetensors", tensors, {{"format", "pt"}});
  }

  ConvertSpec SpecOf(const Variant& variant, const std::string& name) const {
    const std::string suffix = variant.format == "gguf" ? ".gguf" : "";
    ConvertSpec spec = Spec(ModelOf(variant.source), variant.format, name + suffix);
    spec.dtype = variant.dtype;
    spec.layout = variant.layout;
    spec.maxtext.ocdbt = variant.ocdbt;
    spec.maxtext.zarr = variant.zarr;
    return spec;
  }
  static fs::path Unfinished(const ConvertSpec& spec) { return Part(spec) / WorkDir::kOut; }
  static fs::path JournalOf(const ConvertSpec& spec) { return Part(spec) / WorkDir::kJournalFile; }

  // The bytes of all output files, and the record.
  static Files Made(const ConvertSpec& spec) {
    Files files;
    fs::path record = spec.target / "convert.json";
    if (spec.format == "gguf") {
      files["file"] = Text(spec.target);
      record = spec.target.string() + ".convert.json";
    } else {
      for (const auto& entry : fs::recursive_directory_iterator(spec.target)) {
        if (!entry.is_regular_file() || entry.path() == record) continue;
        files[entry.path().lexically_relative(spec.target)] = Text(entry.path());
      }
    }
    const auto json = nlohmann::json::parse(Text(record));
    files["report"] = json.at(spec.format).dump();
    return files;
  }
  static void Remove(const ConvertSpec& spec) {
    fs::remove_all(spec.target);
    fs::remove(spec.target.string() + ".convert.json");
  }

  // The output of an undisturbed conversion. For MaxText, conversions that begin with Stamp give
  // the same bytes.
  Files Whole(const Variant& variant) {
    const ConvertSpec whole = SpecOf(variant, "whole");
    if (variant.format == "maxtext") {
      RunUntil(whole, 1, 1);
      std::ifstream journal(JournalOf(whole));
      std::getline(journal, stamps_);  // an empty line
      std::getline(journal, stamps_);
      Stamp(whole);
    }
    const auto begin = std::chrono::steady_clock::now();
    Run(whole);
    took_ = std::chrono::steady_clock::now() - begin;
    Files files = Made(whole);
    Remove(whole);
    return files;
  }
  // Leaves what a conversion killed before its first write leaves: the journal's first line.
  void Stamp(const ConvertSpec& spec) const {
    if (spec.format != "maxtext") return;
    RunUntil(spec, 1, 1);
    fs::remove_all(Unfinished(spec));
    std::ofstream(JournalOf(spec)) << stamps_ << "\n";
  }
  // A conversion killed at its end is already published; the next one begins anew, with other
  // stamps.
  static bool IsPublished(const ConvertSpec& spec) {
    const fs::path identity = Part(spec) / "conversion.json";
    return fs::exists(identity) && Text(identity) == "published\n";
  }

  // Kills when most data is written and the journal lists many of the 46 tensors.
  void RunUntilWritten(const Variant& variant, const ConvertSpec& spec) {
    RunUntil(spec, 45, variant.format == "maxtext" && variant.layout.empty() ? 8 : 25);
  }

  std::string stamps_;                             // the journal's line
  std::chrono::steady_clock::duration took_ = {};  // duration of the last Whole
};

TEST(Journal, HasNotesAndDropsWhatComesBehind) {
  const tests::TemporaryDir dir;
  const std::vector<Journal::Entry> entries = {
      {"a", 0}, {"a", 1, "first"}, {"a", 12, "a note / of words"}, {"b", 12, "b's"}};
  Journal(dir / "journal").Add(entries);
  const Journal::Entry later{"a", 1, "second"};
  Journal(dir / "journal").Add({&later, 1});

  Journal journal(dir / "journal");

  EXPECT_TRUE(journal.Has("a", 0));
  EXPECT_EQ(*journal.Find("a", 0), "");
  EXPECT_EQ(*journal.Find("a", 1), "second");
  EXPECT_EQ(*journal.Find("a", 12), "a note / of words");
  EXPECT_EQ(journal.Find("a", 2), nullptr);
  journal.Drop("a", 1);
  const Journal again(dir / "journal");
  EXPECT_TRUE(again.Has("a", 0));
  EXPECT_FALSE(again.Has("a", 1));
  EXPECT_FALSE(again.Has("a", 12));
  EXPECT_EQ(*again.Find("b", 12), "b's");
}

TEST_F(ResumeFormatsTest, KilledAtAnyMomentItEndsAsIfItHadNotBeen) {
  const int kills = std::getenv("TANDEM_SLOW_TESTS") != nullptr ? 50 : 1;
  std::mt19937 random(std::random_device{}());
  int gone_on = 0;
  for (const Variant& variant : Variants()) {
    SCOPED_TRACE(variant.name);
    const Files whole = Whole(variant);
    for (int i = 0; i < kills; ++i) {
      const ConvertSpec spec = SpecOf(variant, "out");
      Stamp(spec);
      for (int life = 0; life < 2 && !fs::exists(spec.target); ++life) {
        const auto when = took_ * (random() % 60) / 100;
        RunInChild(spec, [&](pid_t child) {
          std::this_thread::sleep_for(when);
          kill(child, SIGKILL);
        });
        if (IsPublished(spec)) {
          fs::remove_all(Part(spec));
          if (!fs::exists(spec.target)) Stamp(spec);
        }
      }
      if (!fs::exists(spec.target)) {
        gone_on += fs::exists(JournalOf(spec)) ? 1 : 0;
        Run(spec);
        EXPECT_FALSE(fs::exists(Part(spec)));
      }

      ExpectSameContents(Made(spec), whole);
      Remove(spec);
      fs::remove_all(Part(spec));  // left by a conversion killed after publishing
    }
  }
  EXPECT_GT(gone_on, 0);
}

// The test overwrites the whole file; tensors in the journal are not written again.
TEST_F(ResumeFormatsTest, TensorsOfGgufAreNotWrittenAgain) {
  const Variant variant = Variants()[0];
  const Files whole = Whole(variant);
  ConvertSpec spec = SpecOf(variant, "out");
  RunUntilWritten(variant, spec);
  const std::string begun = Text(Unfinished(spec));
  const engine::GgufFile layout =
      engine::GgufFile::FromBytes(std::as_bytes(std::span(whole.at("file"))), "whole");
  const auto data_of = [&](const std::string& text, const std::string& name) {
    const auto data = layout.Find(name)->data;
    const auto at = reinterpret_cast<const char*>(data.data()) - whole.at("file").data();
    return text.substr(static_cast<size_t>(at), data.size());
  };
  std::ofstream(Unfinished(spec)) << std::string(begun.size(), '\x11');
  const Journal journal(JournalOf(spec));
  spec.verify = false;

  Run(spec);

  const Files made = Made(spec);
  EXPECT_EQ(made.at("report"), whole.at("report"));
  int64_t index = 0, n_kept = 0;
  const auto record = nlohmann::json::parse(Text(spec.target.string() + ".convert.json"));
  for (const auto& tensor : record.at("gguf").at("tensors")) {
    const std::string name = tensor.at("name");
    SCOPED_TRACE(name);
    const std::string is = data_of(made.at("file"), name);
    if (journal.Has("target", index++)) {
      EXPECT_EQ(is, std::string(is.size(), '\x11'));
      ++n_kept;
    } else {
      EXPECT_EQ(is, data_of(whole.at("file"), name));
    }
  }
  EXPECT_GT(n_kept, 10);
}

TEST_F(ResumeFormatsTest, FilesOfMaxTextAreNotWrittenAgain) {
  const Variant variant = Variants()[5];
  const ConvertSpec spec = SpecOf(variant, "out");
  RunUntilWritten(variant, spec);
  std::set<ino_t> before;
  for (const auto& entry : fs::recursive_directory_iterator(Unfinished(spec))) {
    struct stat status {};
    ASSERT_EQ(stat(entry.path().c_str(), &status), 0);
    if (entry.is_regular_file()) before.insert(status.st_ino);
  }
  const Journal journal(JournalOf(spec));
  const fs::path item = spec.target / "0/items";

  Run(spec);

  int64_t n_leaves = 0;
  while (journal.Has("items", n_leaves + 1)) ++n_leaves;
  int64_t n_kept = 0;
  for (const auto& entry : fs::recursive_directory_iterator(item)) {
    struct stat status {};
    ASSERT_EQ(stat(entry.path().c_str(), &status), 0);
    if (entry.is_regular_file() && before.contains(status.st_ino)) ++n_kept;
  }
  EXPECT_GE(n_leaves, 24);
  // A description and a chunk each; every array above has one chunk.
  EXPECT_GE(n_kept, 2 * n_leaves);
}

TEST_F(ResumeFormatsTest, TheDatabaseOfMaxTextIsNotWrittenAgain) {
  const Variant variant = Variants()[2];
  const Files whole = Whole(variant);
  ConvertSpec spec = SpecOf(variant, "out");
  Stamp(spec);
  RunUntilWritten(variant, spec);
  fs::path data;
  for (const auto& entry : fs::directory_iterator(Unfinished(spec) / "0/items/d")) {
    ASSERT_TRUE(data.empty());
    data = entry.path();
  }
  const std::string name = data.lexically_relative(Unfinished(spec));
  const std::string overwritten(Text(data).size(), '\x11');
  std::ofstream(data) << overwritten;
  spec.verify = false;

  Run(spec);

  const Files made = Made(spec);
  const std::string& is = made.at(name);
  const std::string& wanted = whole.at(name);
  const size_t n_kept = std::min(is.find_first_not_of('\x11'), is.size());
  EXPECT_GT(n_kept, wanted.size() / 4);
  EXPECT_EQ(is.substr(n_kept + 1), wanted.substr(n_kept + 1));
  EXPECT_EQ(made.at("report"), whole.at("report"));
}

// Truncated, changed and foreign lines in every field of the journal.
TEST_F(ResumeFormatsTest, WhateverTheJournalSaysTheModelIsWhole) {
  std::mt19937 random(std::random_device{}());
  struct Note {
    const char* file;
    int64_t entry;
    const char* text;
  };
  const std::vector<Note> notes = {{"target", 1, ""},
                                   {"target", 1, "0x1p-3 0x1p-3"},
                                   {"target", 1, "nan 1 1"},
                                   {"items", 0, ""},
                                   {"items", 0, "0123456789abcdef 0123456789abcdef 1"},
                                   {"items", 1, ""},
                                   {"items", 1, "f32 0 0p+0 "},
                                   {"items", 2, "f32 0 0p+0 5,"},
                                   {"items", 2, "i8 0 0p+0 5,5"},
                                   {"items", 2, "f32 -1 0p+0 5,5"},
                                   {"items", 1, "f32 0 0p+0 5,18446744073709551615"},
                                   {"items", 2, "f32 0 0p+0 5,99999999999999999999"},
                                   {"items", 2, "f32 0 0p+0 :7b7,:00"},
                                   {"items", 2, "f32 0 0p+0 :7b7d,40 a.b i8 1 5,5"}};
  for (const size_t which : {0, 2, 4}) {
    const Variant variant = Variants()[which];
    SCOPED_TRACE(variant.name);
    const ConvertSpec spec = SpecOf(variant, "out");
    RunUntilWritten(variant, spec);
    const fs::path kept = dir_.path() / "kept";
    fs::remove_all(kept);
    fs::rename(Part(spec), kept);
    const std::string journal = Text(kept / WorkDir::kJournalFile);
    const auto expect_whole = [&](const std::function<void()>& damage) {
      fs::copy(kept, Part(spec), fs::copy_options::recursive);
      damage();
      ASSERT_NO_THROW(Run(spec));  // compared with the source
      EXPECT_FALSE(fs::exists(Part(spec)));
      Remove(spec);
    };

    for (int i = 0; i < 2; ++i) {
      std::string damaged = journal;
      damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
      if (i % 2 == 0) damaged.resize(random() % damaged.size());
      expect_whole([&] { std::ofstream(JournalOf(spec)) << damaged; });
    }
    for (const Note& note : notes) {
      if (which == 4 || note.file != std::string(which == 0 ? "target" : "items")) continue;
      SCOPED_TRACE(note.text);
      expect_whole([&] {
        const Journal::Entry entry{note.file, note.entry, note.text};
        Journal(JournalOf(spec)).Add({&entry, 1});
      });
    }
  }
}

TEST_F(ResumeFormatsTest, FilesThatAreGoneOrShorterAreMadeAgain) {
  for (const size_t which : {0, 2, 4}) {
    const Variant variant = Variants()[which];
    SCOPED_TRACE(variant.name);
    const ConvertSpec spec = SpecOf(variant, "out");
    for (const bool is_gone : {false, true}) {
      RunUntilWritten(variant, spec);
      std::vector<fs::path> files;
      if (variant.format == "gguf") files.push_back(Unfinished(spec));
      for (const auto& item : {"0", "exact"}) {
        if (!fs::exists(Unfinished(spec) / item)) continue;
        for (const auto& entry : fs::recursive_directory_iterator(Unfinished(spec) / item)) {
          if (entry.is_regular_file() && entry.file_size() > 1000) files.push_back(entry.path());
        }
      }
      ASSERT_FALSE(files.empty());
      const fs::path& file = *std::min_element(files.begin(), files.end());
      is_gone ? (void)fs::remove(file) : fs::resize_file(file, fs::file_size(file) / 2);

      ASSERT_NO_THROW(Run(spec));  // compared with the source

      Remove(spec);
    }
  }
}

TEST_F(ResumeFormatsTest, AnotherSourceOrSpecStartsAnew) {
  for (const size_t which : {0, 2}) {
    const Variant variant = Variants()[which];
    SCOPED_TRACE(variant.name);
    const ConvertSpec spec = SpecOf(variant, "out");
    RunUntilWritten(variant, spec);
    Variant other = variant;
    if (variant.format == "gguf") {
      other.dtype = "q4_0";
    } else {
      other.zarr = 5 - variant.zarr;
    }
    ASSERT_NO_THROW(Run(SpecOf(other, "out")));
    EXPECT_FALSE(fs::exists(Part(spec)));
    Remove(spec);

    RunUntilWritten(variant, spec);
    fs::remove(ModelOf(variant.source) / "model.safetensors");
    WriteModel(variant.source, 2);
    ASSERT_NO_THROW(Run(spec));
    Remove(spec);
  }
}

TEST_F(ResumeFormatsTest, AStoppedOneLeavesNothing) {
  for (const size_t which : {0, 2, 4}) {
    const ConvertSpec spec = SpecOf(Variants()[which], "out");
    std::stop_source stop;
    JobContext context;
    context.stop = stop.get_token();
    context.report = [&](const ProgressEvent& event) {
      if (event.step > 20) stop.request_stop();
    };
    EXPECT_EQ(Fault(spec, context)->code(), ErrorCode::kCancelled);
    EXPECT_FALSE(fs::exists(Part(spec)));
    EXPECT_FALSE(fs::exists(spec.target));
  }
}

// The disk is too small for the file: data written before the failure stays.
TEST_F(ResumeFormatsTest, AFullDiskIsNamedAndGoneOnWith) {
  const Variant variant = Variants()[2];
  const Files whole = Whole(variant);
  const ConvertSpec spec = SpecOf(variant, "out");
  Stamp(spec);
  ExpectFullDisk(spec, 3 << 19, {"items/d/", "out.part"});

  EXPECT_FALSE(fs::exists(spec.target));
  ASSERT_TRUE(fs::exists(JournalOf(spec)));

  Run(spec);

  ExpectSameContents(Made(spec), whole);
  EXPECT_FALSE(fs::exists(Part(spec)));
}

}  // namespace
}  // namespace tandem::convert
