#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tandem::server {

// The spec of a job for replicas whose data directories have different paths: strings that begin
// with the path of the data directory begin with kDataDirMark instead.
inline constexpr std::string_view kDataDirMark = "{tandem-data-dir}";

// Throws kInvalidArgument for a spec that has the mark already: it would name files that its author
// may not read.
std::string PortableSpec(std::string_view spec_json, const std::filesystem::path& data_dir);
// The reverse, for another data directory.
std::string LocalSpec(std::string_view portable, const std::filesystem::path& data_dir);

}  // namespace tandem::server
