#pragma once

#include <pthread.h>

#include <string>

#include "engine/base/check.h"

namespace tandem {

// What `top -H`, gdb and /proc/PID/task/TID/comm call the calling thread: "tandem-engine". Not for
// the main thread, whose name is the process's.
inline void NameThisThread(const std::string& name) {
  TANDEM_CHECK(name.size() <= 15);  // Linux takes no more
  pthread_setname_np(pthread_self(), name.c_str());
}

}  // namespace tandem
