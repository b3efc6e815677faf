#pragma once

#include <string>
#include <string_view>

#include "convert/spec/spec.h"

namespace tandem::convert {

std::string FormatNames();  // all target formats: "hf, native, …"
// Returns `name`, with the file suffix of `format` (formats.h) if it lacks it.
std::string TargetName(std::string_view format, const std::string& name);

// Checks everything that needs no weights. Throws, with the field of the spec as param:
//   kInvalidArgument  a format (unsupported_value), dtype, layout or zarr that cannot be written; a
//                     rank, alpha or base that is missing, unused or out of range; a bad max_kl; a
//                     target that contains the source
//   kNotFound         the source or base does not exist (path_not_found)
//   kUnsupported      an unknown kind of source
//   kAlreadyExists    a target that may not be replaced
void CheckConvertSpec(const ConvertSpec& spec);

}  // namespace tandem::convert
