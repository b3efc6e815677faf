#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// W&B's file of an offline run, run-ID.wandb: LevelDB's log format with the CRC-32 of zlib, after a
// header of 7 bytes, around protocol buffers (message Record). Coded by hand, because only a few
// fields are in use.
namespace tandem::training {

// Bytes at the beginning of a file.
std::string WandbHeader();
// The bytes of one record for a file of `file_bytes`: padding, and parts that end with their block
// of 32 KiB.
std::string FrameWandbRecord(std::string_view payload, size_t file_bytes);
// Reads the record at *at and advances. Returns false at the end and at a damaged or incomplete
// record. `*at` is 7 at first; the caller compares the header.
bool TakeWandbRecord(std::string_view file, size_t* at, std::string* payload);

// Names and values; the values are JSON.
using WandbItems = std::vector<std::pair<std::string, std::string>>;

struct WandbRun {
  std::string id;  // 8 characters of [a-z0-9]
  std::string project;
  std::string name;  // shown to people
  WandbItems config;
  double started_unix = 0;
};

struct WandbHistory {
  int64_t step = 0;
  WandbItems items;  // _step included
};

// `number`: of the record in its file, from 1.
std::string EncodeWandbRun(const WandbRun& run, int64_t number);
std::string EncodeWandbHistory(const WandbHistory& history, int64_t number);
// The last values of a run.
std::string EncodeWandbSummary(const WandbItems& items, int64_t number);
std::string EncodeWandbExit(int exit_code, int64_t number);

// Whether a record is one of history; fills `history`. Skips unknown fields.
bool DecodeWandbHistory(std::string_view record, WandbHistory* history);

}  // namespace tandem::training
