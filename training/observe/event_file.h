#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// TensorBoard's event files: TFRecord framing around protocol buffers, both by hand, since a few
// fields of two messages are all there is to it.
namespace tandem::training {

// The Castagnoli polynomial, as in iSCSI.
uint32_t Crc32c(std::string_view bytes);

// What we write and read of tensorflow.Event.
struct TensorBoardEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;  // of a file's first event
  std::vector<std::pair<std::string, float>> scalars;
};

std::string EncodeEvent(const TensorBoardEvent& event);
// Unknown fields are skipped; false where the bytes are no message.
bool DecodeEvent(std::string_view bytes, TensorBoardEvent* event);

// length, its checksum, the payload, its checksum.
std::string FrameRecord(std::string_view payload);
// Takes the first record off `*file`; false at the end and at a record that is damaged or cut off.
bool TakeRecord(std::string_view* file, std::string_view* payload);

}  // namespace tandem::training
