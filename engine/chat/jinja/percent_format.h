#pragma once

#include "engine/chat/jinja/value.h"

namespace tandem::engine {

// format % arguments, for the string operator and the `format` filter.
Value FormatPercent(Runtime& rt, const Text& format, const Arguments& arguments);

}  // namespace tandem::engine
