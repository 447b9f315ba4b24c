// HPS_CHECK: an assertion on the programmer that is always on, in release builds too.
#pragma once

#include <cstdio>
#include <cstdlib>

#define HPS_CHECK(condition)                                                                 \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: hps check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
