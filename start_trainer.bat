@echo off
rem Starts the trainer with the Python that runs ComfyUI. Closing the window pauses it; nothing is lost.
rem Options are passed on: start_trainer.bat --output D:\ComfyUI\output
setlocal EnableExtensions DisableDelayedExpansion
chcp 65001 >nul
set "here=%~dp0"
set "output=%here%..\..\output"

:arguments
if "%~1"=="" goto record
if "%~1"=="--output" set "output=%~2"
shift
goto arguments

:record
rem ComfyUI writes down its own Python when it loads this pack, on a line like  "python": "C:\\...\\python.exe",
set "record=%output%\stepwise_grpo\comfyui.json"
set "python="
set "why=ComfyUI recorded it"
if exist "%record%" for /f "usebackq tokens=1,* delims=: " %%a in ("%record%") do if "%%~a"=="python" set "python=%%b"
if not defined python goto search
if "%python:~-1%"=="," set "python=%python:~0,-1%"
set "python=%python:"=%"
set "python=%python:\\=\%"
if exist "%python%" goto start
set "python="

:search
set "why=found beside ComfyUI"
for %%n in (python_embeded\python.exe .venv\Scripts\python.exe venv\Scripts\python.exe) do for %%d in ("%here%..\..\.." "%here%..\.." "%here%.") do if not defined python if exist "%%~d\%%n" set "python=%%~d\%%n"
if defined python goto start
set "why=found on PATH; ComfyUI has not recorded its own yet"
set "python=python"

:start
echo Trainer: using "%python%" (%why%)
"%python%" "%here%training" %*
if errorlevel 1 pause
