#pragma once

#include <pthread.h>

#include <string>

#include "engine/base/check.h"

namespace tandem {

// Names the calling thread for `top -H`, gdb and /proc/PID/task/TID/comm, for example
// "tandem-engine". Not for the main thread, whose name is that of the process.
inline void NameThisThread(const std::string& name) {
  TANDEM_CHECK(name.size() <= 15);  // limit of Linux
  pthread_setname_np(pthread_self(), name.c_str());
}

}  // namespace tandem
