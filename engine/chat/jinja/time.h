#pragma once

#include "engine/chat/jinja/value.h"

namespace tandem::engine {

// strftime_now(format): the rendering's time in UTC and English, in the format of Python's
// strftime.
Value StrftimeNow(Runtime& rt, const Arguments& arguments);

}  // namespace tandem::engine
