#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// TensorBoard's event files: TFRecord framing around protocol buffers. Both are coded by hand,
// because only a few fields of two messages are in use.
namespace tandem::training {

// The fields of tensorflow.Event that we read and write.
struct TensorBoardEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;  // only in a file's first event
  std::vector<std::pair<std::string, float>> scalars;
};

std::string EncodeEvent(const TensorBoardEvent& event);
// Skips unknown fields. Returns false when the bytes are no valid message.
bool DecodeEvent(std::string_view bytes, TensorBoardEvent* event);

// Length, its checksum, payload, its checksum.
std::string FrameRecord(std::string_view payload);
// Removes the first record from `*file`. Returns false at the end and at a damaged or incomplete
// record.
bool TakeRecord(std::string_view* file, std::string_view* payload);

}  // namespace tandem::training
