/* Read the stand-in's settings from environment variables, and write its messages to standard error. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

struct settings settings;

static char *copy_of_setting(const char *name)
{
    const char *value = secure_getenv(name);
    return value == NULL ? NULL : strdup(value); /* a copy, since a program may overwrite its environment */
}

static void read_settings(void)
{
    const char *compared = secure_getenv("TSM2_COMPARED");
    settings.pack = copy_of_setting("TSM2_LIBRARY");
    settings.journal = copy_of_setting("TSM2_JOURNAL");
    settings.has_times = secure_getenv("TSM2_TIMES") != NULL;
    settings.compared = compared == NULL ? 0 : atoi(compared);
}

/* Run as a constructor, before the program can change its environment. A product in another library's constructor may
   call it earlier. */
__attribute__((constructor)) void read_settings_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_settings);
}

/* Create the file "loaded" in the journal's folder. It shows journal.py that the program has loaded the stand-in. */
__attribute__((constructor)) static void say_loaded(void)
{
    char path[PATH_MAX];
    read_settings_once();
    if (settings.journal == NULL)
        return;
    const int before = errno, bytes = snprintf(path, sizeof path, "%s/loaded", settings.journal);
    const int file = bytes < (int)sizeof path ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    if (file >= 0)
        close(file);
    errno = before;
}

/* Write to standard error. If it is a pipe without a reader, discard the SIGPIPE, which the program must not receive. */
static void write_quietly(const char *text)
{
    sigset_t of_pipes, pending, before;
    sigemptyset(&of_pipes);
    sigaddset(&of_pipes, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &of_pipes, &before);
    sigpending(&pending);
    if (write(STDERR_FILENO, text, strlen(text)) < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE)) {
        const struct timespec at_once = {0, 0};
        sigtimedwait(&of_pipes, NULL, &at_once);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void tell(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    const int written = snprintf(text, sizeof text, "tsm2-tune: ");
    vsnprintf(text + written, sizeof text - (size_t)written - 1, format, arguments);
    va_end(arguments);
    write_quietly(strcat(text, "\n"));
}
