/* What a program sees of the library: all else is hidden. */

#ifndef TSM2_EXPORTED_H
#define TSM2_EXPORTED_H

#define EXPORTED __attribute__((visibility("default")))

#endif
