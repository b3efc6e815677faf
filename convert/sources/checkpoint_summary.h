#pragma once

#include <filesystem>
#include <string>

namespace tandem::convert {

// Describes a checkpoint as a JSON object without reading weights. All formats have format, path,
// tensors, bytes and the dtype of the largest tensor. Tandem's checkpoints add kind, step, arch,
// layout and the run's state; Orbax adds its metadata, models their family. `provenance` is the
// record beside the checkpoint (provenance.h). Untrusted texts are cut. Throws like OpenTensors,
// and kDataLoss for an unreadable manifest, config or record.
std::string CheckpointSummary(const std::filesystem::path& path);

}  // namespace tandem::convert
