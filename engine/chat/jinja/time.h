#pragma once

#include "engine/chat/jinja/value.h"

namespace tandem::engine {

// strftime_now(format): formats the rendering's time in UTC and English, with the directives of
// Python's strftime. %f is zeros; %z and %Z are empty. A format over 256 bytes or an unknown
// directive is a fault.
Value StrftimeNow(Runtime& rt, const Arguments& arguments);

}  // namespace tandem::engine
