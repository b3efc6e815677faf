#include "training/data/shard_list.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/support/temporary_dir.h"
#include "training/data/joined_rows.h"
#include "training/data/json_rows.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

void Write(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::vector<std::string> Names(const std::vector<fs::path>& files) {
  std::vector<std::string> names;
  for (const fs::path& file : files) names.push_back(file.filename().string());
  return names;
}

template <class Action>
std::string FaultText(ErrorCode code, Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

using Strs = std::vector<std::string>;

TEST(Shards, TheHubsLayoutHasSplits) {
  tests::TemporaryDir dir;
  for (const char* name : {"train_sft-00001-of-00002", "train_sft-00000-of-00002-a1b2", "test"}) {
    Write(dir / "data" / (std::string(name) + ".parquet"), "");
  }

  EXPECT_EQ(Names(ListShards(dir.path(), "train_sft")),
            (Strs{"train_sft-00000-of-00002-a1b2.parquet", "train_sft-00001-of-00002.parquet"}));
  EXPECT_EQ(Names(ListShards(dir / "data", "test")), Strs{"test.parquet"});
  const std::string fault = FaultText(ErrorCode::kInvalidArgument, [&] { ListShards(dir.path()); });
  EXPECT_NE(fault.find("'test, train_sft'"), std::string::npos) << fault;
  FaultText(ErrorCode::kInvalidArgument, [&] { ListShards(dir.path(), "train"); });
}

TEST(Shards, FoldersOfConvertedSetsAreSplitsToo) {
  tests::TemporaryDir dir;
  Write(dir / "default/train/0001.parquet", "");
  Write(dir / "default/train/0000.parquet", "");

  EXPECT_EQ(Names(ListShards(dir.path())), (Strs{"0000.parquet", "0001.parquet"}));
  EXPECT_EQ(Names(ListShards(dir.path(), "train")), (Strs{"0000.parquet", "0001.parquet"}));
  EXPECT_EQ(Names(ListShards(dir / "default/train")), (Strs{"0000.parquet", "0001.parquet"}));
}

TEST(Shards, ArrayRecordShardsHaveTheirNumberBehindTheExtension) {
  tests::TemporaryDir dir;
  for (const char* name : {"c4-train.array_record-00001-of-00002", "c4-validation.arrayrecord",
                           "c4-train.array_record-00000-of-00002"}) {
    Write(dir / name, "");
  }
  EXPECT_EQ(Names(ListShards(dir.path(), "c4-train")),
            (Strs{"c4-train.array_record-00000-of-00002", "c4-train.array_record-00001-of-00002"}));
  EXPECT_EQ(Names(ListShards(dir.path(), "c4-validation")), Strs{"c4-validation.arrayrecord"});
  fs::remove(dir / "c4-train.array_record-00001-of-00002");
  FaultText(ErrorCode::kInvalidArgument, [&] { ListShards(dir.path(), "c4-train"); });

  EXPECT_TRUE(IsArrayRecordName("a/x.array_record-00000-of-01024"));
  for (const char* other : {"x.array_record-", "x.array_record.json", "x.array_record-of-2",
                            "array_record-00000-of-00001"}) {
    EXPECT_FALSE(IsArrayRecordName(other)) << other;
  }
}

TEST(Shards, AMissingShardIsAnError) {
  tests::TemporaryDir dir;
  Write(dir / "train-00000-of-00003.parquet", "");
  Write(dir / "train-00002-of-00003.parquet", "");
  const auto list = [&] { ListShards(dir.path()); };
  EXPECT_NE(FaultText(ErrorCode::kInvalidArgument, list).find("expected shard 1 of 3"),
            std::string::npos);

  fs::rename(dir / "train-00002-of-00003.parquet", dir / "train-00001-of-00003.parquet");
  EXPECT_NE(FaultText(ErrorCode::kInvalidArgument, list).find("the directory has 2 of 3"),
            std::string::npos);
}

TEST(Shards, PatternsAreOfNames) {
  tests::TemporaryDir dir;
  for (const char* name : {"a-1", "a-2", "b-1", "a-10"}) {
    Write(dir / (std::string(name) + ".parquet"), "");
  }
  EXPECT_EQ(Names(ListShards(dir / "a-?.parquet")), (Strs{"a-1.parquet", "a-2.parquet"}));
  EXPECT_EQ(Names(ListShards(dir / "*-1*t")), (Strs{"a-1.parquet", "a-10.parquet", "b-1.parquet"}));
  FaultText(ErrorCode::kNotFound, [&] { ListShards(dir / "c*.parquet"); });
  FaultText(ErrorCode::kNotFound, [&] { ListShards(dir / "none/c*.parquet"); });
}

TEST(Shards, LinesOfJsonAreRowsToo) {
  tests::TemporaryDir dir;
  for (const char* name : {"train.jsonl", "test-00000-of-00001.jsonl", "README.md",
                           "dataset_infos.json", "validation.ndjson", "extra.JSON"}) {
    Write(dir / name, "");
  }
  EXPECT_EQ(Names(ListShards(dir.path(), "train")), Strs{"train.jsonl"});
  EXPECT_EQ(Names(ListShards(dir.path(), "test")), Strs{"test-00000-of-00001.jsonl"});
  const std::string fault =
      FaultText(ErrorCode::kInvalidArgument, [&] { ListShards(dir.path(), "dev"); });
  EXPECT_NE(fault.find("no split 'dev'; its splits are 'extra, test, train, validation'"),
            std::string::npos)
      << fault;

  Write(dir / "data/train.parquet", "");
  EXPECT_NE(FaultText(ErrorCode::kInvalidArgument, [&] { ListShards(dir.path(), "train"); })
                .find("only some of the files are Parquet"),
            std::string::npos);
}

TEST(Shards, AListKeepsItsOrder) {
  tests::TemporaryDir dir;
  for (const char* name : {"a-1.jsonl", "a-2.jsonl", "b.jsonl"}) Write(dir / name, "");
  const std::string list = (dir / "b.jsonl").string() + ";" + (dir / "a-*.jsonl").string();
  EXPECT_TRUE(MeansShards(list));
  EXPECT_EQ(Names(ListShards(list)), (Strs{"b.jsonl", "a-1.jsonl", "a-2.jsonl"}));
  FaultText(ErrorCode::kNotFound, [&] { ListShards(list + ";" + (dir / "c.jsonl").string()); });

  // An existing file with that exact name takes precedence.
  Write(dir / "x;*.jsonl", "");
  EXPECT_FALSE(MeansShards(dir / "x;*.jsonl"));
  EXPECT_EQ(Names(ListShards(dir / "x;*.jsonl")), Strs{"x;*.jsonl"});
}

TEST(Shards, ADataSetOfTheHubsCacheIsItsMainSnapshot) {
  tests::TemporaryDir dir;
  const fs::path cached = dir / "datasets--ORG--NAME";
  Write(cached / "snapshots/1111/data/train-00000-of-00001.parquet", "");
  EXPECT_EQ(ListShards(cached).front().string().find("snapshots/2222"), std::string::npos);
  Write(cached / "snapshots/2222/data/train-00000-of-00001.parquet", "");
  EXPECT_NE(FaultText(ErrorCode::kNotFound, [&] { ListShards(cached); }).find("2 versions"),
            std::string::npos);
  Write(cached / "refs/main", "2222\n");
  EXPECT_NE(ListShards(cached, "train").front().string().find("snapshots/2222"), std::string::npos);
}

TEST(Shards, ADataSetThatIsNotHereSaysHowToGetIt) {
  const std::string fault =
      FaultText(ErrorCode::kNotFound, [] { ListShards("HuggingFaceH4/ultrachat_200k", "train"); });
  EXPECT_NE(fault.find("`hf download HuggingFaceH4/ultrachat_200k --repo-type dataset`"),
            std::string::npos)
      << fault;
  EXPECT_EQ(FaultText(ErrorCode::kNotFound, [] { ListShards("folder/rows.jsonl"); }).find("hub"),
            std::string::npos);
}

TEST(JoinedRows, FollowOneAnotherAndSayWhereTheyAre) {
  const std::string a = "{\"x\":0}\n\n{\"x\":1}\n";
  const std::string b = "{\"x\":2}\n";
  const JoinedRows rows({JsonRows::Of(a, "dir/a.jsonl"), JsonRows::Of(b, "dir/b.jsonl")});
  ASSERT_EQ(rows.size(), 3);
  for (const int64_t i : {2, 0, 1}) EXPECT_EQ(rows.Read(i)["x"], i);
  EXPECT_EQ(rows.Where(1), "a.jsonl, line 3");
  EXPECT_EQ(rows.Where(2), "b.jsonl, line 1");
}

}  // namespace
}  // namespace tandem::training
