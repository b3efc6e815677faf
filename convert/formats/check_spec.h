#pragma once

#include <string>
#include <string_view>

#include "convert/spec/spec.h"

namespace tandem::convert {

std::string FormatNames();  // every format that can be written: "hf, native, …"
// `name` with the file suffix of `format` (formats.h) appended when it lacks it.
std::string TargetName(std::string_view format, const std::string& name);

// Checks everything that needs no weights. Throws with the field of the spec as param:
// kInvalidArgument for a format (unsupported_value), dtype or layout that cannot be written, for a
// rank or base that is missing or unused, and for a target that holds the source; kNotFound
// (path_not_found); kUnsupported for an unknown kind of source; kAlreadyExists for a target that
// exists and may not be replaced.
void CheckConvertSpec(const ConvertSpec& spec);

}  // namespace tandem::convert
