#pragma once

#include <string>
#include <string_view>

#include "convert/spec/spec.h"

namespace tandem::convert {

std::string FormatNames();  // all target formats: "hf, native, …"
// Returns `name`, with the file suffix of `format` (formats.h) if it lacks it.
std::string TargetName(std::string_view format, const std::string& name);

// Checks everything that needs no weights. Throws, with the field of the spec as param:
//   kInvalidArgument  format, dtype, layout or zarr is not supported (unsupported_value);
//                     rank, alpha or base is missing, unused or out of range; max_kl is invalid;
//                     the target contains the source
//   kNotFound         the source or base does not exist (path_not_found)
//   kUnsupported      an unknown kind of source
//   kAlreadyExists    a target that may not be replaced
void CheckConvertSpec(const ConvertSpec& spec);

}  // namespace tandem::convert
