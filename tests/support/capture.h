// What is written to standard error. Not gtest's capture: that turns descriptor 2 alone to a file,
// and our messages go there only while it is what it was at the start, or what descriptor 1 is.
#pragma once

#include <gtest/gtest.h>
#include <stdio.h>
#include <unistd.h>

#include <string>

namespace rdmalloc_test {

// From its making on; of both outputs.
class Capture {
 public:
  Capture() {
    fflush(nullptr);
    file_ = tmpfile();
    EXPECT_NE(file_, nullptr);
    for (int output : {1, 2}) {
      before_[output - 1] = dup(output);
      EXPECT_EQ(dup2(fileno(file_), output), output);
    }
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture() { (void)end(); }

  // Ends it. What was written.
  std::string end() {
    std::string text;
    if (file_ == nullptr) return text;
    fflush(nullptr);
    for (int output : {1, 2}) {
      EXPECT_EQ(dup2(before_[output - 1], output), output);
      close(before_[output - 1]);
    }
    rewind(file_);
    char piece[4096];
    while (size_t length = fread(piece, 1, sizeof piece, file_)) text.append(piece, length);
    fclose(file_);
    file_ = nullptr;
    return text;
  }

 private:
  FILE* file_ = nullptr;
  int before_[2] = {};
};

}  // namespace rdmalloc_test
