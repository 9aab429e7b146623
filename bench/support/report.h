// What the reports of all comparing programs are made of: the machine, cells of tables, ratios,
// JSON files and pictures.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/support/allocators.h"
#include "bench/support/statistics.h"

namespace rdmalloc::bench {

// Variables of our environment that allocators read: they reach every program that is measured.
std::map<std::string, std::string> settings_of_malloc();
nlohmann::json host_description();  // processor, cores, memory, kernel, those settings, date
nlohmann::json to_json(const Summary& summary);
nlohmann::json to_json(const LeftOut& left_out);

// ---- cells

// nullptr: it is not there.
template <typename Cells>
const typename Cells::mapped_type* find_cell(const Cells& cells,
                                             const typename Cells::key_type& key) {
  const auto found = cells.find(key);
  return found == cells.end() ? nullptr : &found->second;
}

// The paired ratio of what the cells of `key` and of `base` hold; 0 where one is not there.
template <typename Cells, typename Values>
double ratio_of(const Cells& cells, const typename Cells::key_type& key,
                const typename Cells::key_type& base, Values values) {
  const auto* mine = find_cell(cells, key);
  const auto* other = find_cell(cells, base);
  if (mine == nullptr || other == nullptr) return 0;
  return paired_ratio(std::invoke(values, *mine), std::invoke(values, *other));
}

std::string ratio_text(double ratio, int decimals = 2);  // "-" for 0
std::string threads_text(std::size_t threads);
// The median and half the range; `missing` where no repetition has given a value.
std::string time_text(const std::vector<double>& ns, const std::string& missing);

// ---- files

// Makes the folders above `path`. What went wrong, or nothing.
std::string write_file(const std::string& path, const std::string& text);

// Writes the gnuplot script beside `picture` (as NAME.gp, so that it can be drawn again) and runs
// it. What went wrong or is missing, or nothing.
std::string draw(const std::string& picture, const std::string& script);

// The first lines of a script.
std::string svg_head(const std::string& picture, std::size_t width, std::size_t height);

// Colour and width of an allocator's line or bar; rdmalloc's stands out.
std::string line_style(const std::string& allocator, std::size_t number);

// A data block: a line for each name, with a value for each allocator. What is not positive is
// left out of the picture.
using Bars = std::vector<std::pair<std::string, std::vector<double>>>;
std::string bars_block(const std::string& block, const Bars& bars);
// The bars of the allocator of that number, as a part of "plot".
std::string bars_of(const std::string& block, std::size_t first_column,
                    const std::string& allocator, std::size_t number);
// All of a block that bars_block() has made.
std::string bars_plot(const std::string& block, std::span<const Allocator> allocators);

// Text inside a gnuplot string or heredoc of one word.
std::string gnuplot_quoted(const std::string& text);

}  // namespace rdmalloc::bench
